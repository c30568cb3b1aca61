"""Modes of networks that groups can have here beside the host's own, and why not, if not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from fedsched.client.fingerprint.found import Fingerprinter, Found, Host
from fedsched.client.network.offer import Offer
from fedsched.client.network.plan import BRIDGE
from fedsched.model.node_resources import NodeNetwork

REASON: Final = "unique.network.bridge.reason"
"""Why mode `bridge` is not to be had. Texts differ from host to host: `unique` keeps them out of the node's class."""


class GroupNetworks(Fingerprinter):
    name = "bridge"
    period_s = 60.0

    def __init__(self, offer: Callable[[], Offer]) -> None:
        self._offer = offer

    def find(self, host: Host) -> Found:
        offer, settings = self._offer(), host.settings
        networks = tuple(
            NodeNetwork(mode=mode, device=settings.bridge_network_name if mode == BRIDGE else "")
            for mode in offer.modes
        )
        if BRIDGE not in offer.modes:
            return Found(attributes={REASON: offer.reason}, group_networks=networks)
        hairpin = str(settings.bridge_network_hairpin_mode).lower()
        return Found(attributes={"nomad.bridge.hairpin_mode": hairpin}, group_networks=networks)

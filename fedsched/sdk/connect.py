"""The door: an address in, a client out."""

from __future__ import annotations

import os
from collections.abc import Mapping

from fedsched.model.errors import Unavailable
from fedsched.sdk.client import PATIENCE_S, Client
from fedsched.sdk.target import Target, target_of
from fedsched.wire import blocking_link
from fedsched.wire.tls import TlsOptions


def connect(
    address: str = "",
    *,
    environ: Mapping[str, str] | None = None,
    patience_s: float = PATIENCE_S,
    **given: str | bool | None,
) -> Client:
    """Make a client of the agent at an address; settings left out come from the environment.

    `given` may have region, namespace, token, ca_cert, ca_path, client_cert, client_key, tls_server_name and
    tls_skip_verify. Nothing is dialled yet: the first call does that.
    """
    return open_client(target_of(address, os.environ if environ is None else environ, **given), patience_s=patience_s)


def open_client(target: Target, *, patience_s: float = PATIENCE_S) -> Client:
    """Make a client of a target that was worked out before."""
    tls = TlsOptions(
        ca_cert=target.ca_cert,
        ca_path=target.ca_path,
        client_cert=target.client_cert,
        client_key=target.client_key,
        server_name=target.tls_server_name,
        skip_verify=target.tls_skip_verify,
    )
    addresses = [target.address, *target.others]

    def dial() -> blocking_link.BlockingLink:
        """The first that is there; the next time, whoever was there last is asked first."""
        for _ in addresses[1:]:
            try:
                return blocking_link.connect(addresses[0], tls=tls)
            except Unavailable:
                addresses.append(addresses.pop(0))
        return blocking_link.connect(addresses[0], tls=tls)

    return Client(target, dial, patience_s=patience_s)

"""Gives an allocation the network that its group asks for, before anything of it can be reached or can reach others."""

from __future__ import annotations

from typing import ClassVar, Final

from fedsched.client.context import AllocContext
from fedsched.client.hooks.hook import AllocHook, HookFailed
from fedsched.client.hooks.services import group_environment
from fedsched.client.network.plan import NO_NETWORK, OWN_MODES, Wish
from fedsched.drivers.driver import NetIsolation

HOST_MODES: Final = ("", "host")


def wish_of(alloc: AllocContext) -> Wish:
    """What the group says; raises `HookFailed` for a mode that this client does not build."""
    networks = alloc.group.networks
    if not networks:
        return Wish()
    network = networks[0]
    mode = "" if network.mode in HOST_MODES else network.mode
    if mode and mode not in OWN_MODES:
        raise HookFailed(f"network mode {mode[:80]!r} is not built here", hint="host, bridge and none are")
    return Wish(mode, group_environment(alloc).text(network.hostname), network.dns)


class NetworkHook(AllocHook):
    """A namespace for all tasks of the group, its addresses and ports."""

    name: ClassVar[str] = "network"

    @property
    def is_idle(self) -> bool:
        return not self.alloc.group.networks

    async def prerun(self) -> None:
        wish = wish_of(self.alloc)
        if not wish.has_namespace and wish.dns is None:
            self.alloc.network = NO_NETWORK
            return
        networks = self.alloc.parts.networks
        if networks is None:
            raise HookFailed(f"this client makes no networks for groups, and mode is {wish.mode!r}")
        if wish.has_namespace:
            self._check_drivers(wish)
        opened = await networks.open(self.alloc.alloc, wish)
        if opened.status is not None:
            await self.alloc.keep_network(opened.status)
        self.alloc.network = opened.network

    async def postrun(self) -> None:
        await self._close()

    async def destroy(self) -> None:
        await self._close()  # again, if it failed then

    async def _close(self) -> None:
        networks, said = self.alloc.parts.networks, self.alloc.group.networks
        if networks is not None and said and (said[0].mode not in HOST_MODES or said[0].dns is not None):
            await networks.close(self.alloc.alloc.id)

    def _check_drivers(self, wish: Wish) -> None:
        for name, task in sorted(self.alloc.tasks.items()):
            if NetIsolation.GROUP not in task.driver.capabilities.net_isolation_modes:
                raise HookFailed(
                    f"network mode is {wish.mode!r}, and task {name!r} cannot join it: its driver "
                    f"{task.driver.name} has no such thing",
                    hint="use another driver, or mode host",
                )

"""Calls to regions by their names, our own included: what a server itself asks on behalf of a job or of a rollout."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, Final, TypeVar

import trio

from fedsched.federation.directory import Directory
from fedsched.model.declare import Record
from fedsched.model.errors import DeadlineExceeded, FedschedError
from fedsched.rpc.context import CallMeta, RequestID
from fedsched.rpc.method import Method
from fedsched.wire.groups import open_plain_nursery

Q = TypeVar("Q", bound=Record)
R = TypeVar("R", bound=Record)
Send = Callable[[Method[Any, Any], Any, CallMeta], Awaitable[Any]]
"""Asks as this server does: dispatch brings the call to the region that the meta names."""

LOOK_S: Final = 4.0
"""For what is only good to know: two of these, one after the other, fit into the time that a caller waits."""


class RegionCalls:
    """One server's questions to regions."""

    def __init__(self, own: str, directory: Callable[[], Directory], send: Send) -> None:
        self.own = own
        self._directory = directory
        self._send = send

    def known(self) -> tuple[str, ...]:
        """All regions that were ever heard of, whether or not somebody there answers now."""
        return self._directory().all_regions()

    async def ask(
        self,
        region: str,
        method: Method[Q, R],
        request: Q,
        *,
        within_s: float,
        namespace: str = "",
        token: str = "",
        request_id: RequestID | None = None,
    ) -> R:
        """What the region says; `DeadlineExceeded` if it says nothing in time."""
        meta = CallMeta(region=region, namespace=namespace, token=token, request_id=request_id)
        try:
            with trio.fail_after(within_s):
                reply: R = await self._send(method, request, meta)
                return reply
        except trio.TooSlowError:
            raise DeadlineExceeded(
                f"{method.name}: region {region!r} did not answer within {within_s:g} s",
                hint="`fedsched region list` shows who is there",
            ) from None

    async def ask_each(
        self,
        requests: Iterable[tuple[str, Q]],
        method: Method[Q, R],
        *,
        within_s: float,
        namespace: str = "",
        token: str = "",
    ) -> dict[str, R | FedschedError]:
        """What each region says to its request, or why it said nothing; all are asked at once."""
        wanted = list(requests)
        found: dict[str, R | FedschedError] = {}

        async def ask(region: str, request: Q) -> None:
            try:
                found[region] = await self.ask(
                    region, method, request, within_s=within_s, namespace=namespace, token=token
                )
            except FedschedError as error:
                found[region] = error

        async with open_plain_nursery() as nursery:
            for region, request in wanted:
                nursery.start_soon(ask, region, request)
        return {region: found[region] for region, _ in wanted}

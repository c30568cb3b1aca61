"""What one server says about itself, in the few words that tests need."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tests.e2e.region import LEADER_S, Region, Server


@dataclass(frozen=True)
class View:
    """One answer to "how are you?"; local knowledge of that server, given without asking anybody else."""

    name: str
    role: str
    leader: str
    """Name of the leader it knows, or empty."""
    term: int
    applied: int
    last: int
    state_index: int
    """The last entry that changed the state."""
    digest: str
    """Of the state right after `state_index`; two servers at one such index must agree on it."""
    is_established: bool = False

    @property
    def is_leader(self) -> bool:
        return self.role == "leader"


Look = Callable[[Server], View | None]
"""Asks a server; None when it does not answer soon."""


def views(region: Region, look: Look, names: Iterable[str] | None = None) -> dict[str, View]:
    chosen = [region.servers[name] for name in names] if names is not None else list(region.servers.values())
    answers = {server.name: look(server) for server in chosen if server.is_alive and not server.is_paused}
    return {name: view for name, view in answers.items() if view is not None}


def agreed_leader(seen: dict[str, View], needed: int) -> str | None:
    """The leader that at least `needed` servers, itself among them, name in one term."""
    for name, view in seen.items():
        if view.is_leader:
            votes = sum(other.leader == name and other.term == view.term for other in seen.values())
            if votes >= needed:
                return name
    return None


def wait_until(what: str, is_true: Callable[[], bool], within_s: float, region: Region, poll_s: float = 0.1) -> None:
    """Poll until true; the failure names what was waited for and shows the end of every log."""
    deadline = time.monotonic() + within_s
    while not is_true():
        if time.monotonic() > deadline:
            tails = "\n".join(server.tail() for server in region.servers.values())
            raise AssertionError(f"not within {within_s:g} s: {what}\n{tails}")
        time.sleep(poll_s)


def wait_leader(region: Region, look: Look, *, within_s: float = LEADER_S, needed: int | None = None) -> str:
    """The name of a leader that `needed` servers (all that are alive, unless said otherwise) agree on."""
    found: list[str] = []

    def is_agreed() -> bool:
        wanted = len(region.alive()) if needed is None else needed
        leader = agreed_leader(views(region, look), wanted)
        found.extend([leader] if leader else [])
        return bool(found)

    wait_until("a leader that all agree on", is_agreed, within_s, region)
    return found[0]


def wait_level(region: Region, look: Look, *, within_s: float, names: Iterable[str] | None = None) -> dict[str, View]:
    """Wait until all have applied the same index with the same digest; quiet writers are the caller's duty.

    Unequal digests at one index are no matter of waiting: they fail at once.
    """
    chosen = list(names) if names is not None else list(region.servers)
    seen: dict[str, View] = {}

    def is_level() -> bool:
        seen.clear()
        seen.update(views(region, look, chosen))
        problem = digests_differ(seen.values())
        assert not problem, problem
        return len(seen) == len(chosen) and len({view.applied for view in seen.values()}) == 1

    wait_until(f"{', '.join(chosen)} at one applied index", is_level, within_s, region, poll_s=0.2)
    return seen


def digests_differ(seen: Iterable[View]) -> str:
    """Words when two servers hold different states at one index; empty when all is well."""
    by_index: dict[int, dict[str, list[str]]] = {}
    for view in seen:
        by_index.setdefault(view.state_index, {}).setdefault(view.digest, []).append(view.name)
    for index, digests in sorted(by_index.items()):
        if len(digests) > 1:
            return f"state differs at index {index}: " + "; ".join(
                f"{', '.join(names)} have {digest}" for digest, names in sorted(digests.items())
            )
    return ""

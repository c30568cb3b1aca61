"""Bugs planted on purpose: if the simulated federation does not notice them, it would not notice real ones either.

    python -m fedsched.sim.federation_mutants [--seeds 30] [NAME ...]

Every promise between regions has at least one bug that breaks it. Each is looked for from seed 0 on. Bugs in what
servers do about rollouts are in `federation_rollout_mutants`, those in their cores alone in `rollout_mutants`,
those of gossip alone in `gossip_mutants`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final, NamedTuple

import trio
from msgspec import structs

from fedsched.federation.directory import Directory, Server
from fedsched.federation.route import Router, Wanted, nearer_of_two
from fedsched.gossip.asked import MemberNews, NewsKind
from fedsched.gossip.core import GossipCore
from fedsched.rpc.context import RequestID
from fedsched.rpc.relay import relay
from fedsched.rpc.server_side import CallContext
from fedsched.server import forwarding, silence
from fedsched.server.dispatch import Dispatch
from fedsched.server.forwarding import Forwarding
from fedsched.server.leader import versions
from fedsched.server.wan import Wan
from fedsched.sim import federation_rollout_mutants, long_cuts, rollout_mutants
from fedsched.sim.federation_run import run_seed
from fedsched.sim.fleet_mutants import Catch, Patch
from fedsched.sim.rollout_world import World
from fedsched.sim.verdict import Broken

SEEDS_MAX: Final = 30
CUTS: Final = "long cuts"
ROLLOUTS: Final = "rollouts"


class Mutant(NamedTuple):
    """One bug, and which promise has to notice."""

    name: str
    patches: tuple[Patch, ...]
    broken: tuple[str, ...]
    """How the names of the invariants begin that may be the first to break."""
    is_quick: bool = False
    where: str = ""
    """In which worlds it shows; empty: in federations."""


def _one(
    name: str, where: Any, attribute: str, instead: Any, broken: tuple[str, ...], *, quick: bool = False, at: str = ""
) -> Mutant:
    return Mutant(name, (Patch(where, attribute, instead),), broken, quick, at)


# --- what is put in place ---------------------------------------------------------------------------------------------


def _servers_of_all(self: Directory, region: str) -> tuple[Server, ...]:
    return tuple(one for _, one in sorted(self._servers.items()))


def _everybody(self: Router, wanted: Wanted, now: float, chance: Any) -> list[Server]:
    return nearer_of_two(self._directory.servers(wanted.region), chance)


@asynccontextmanager
async def _unwatched(*_: Any, **__: Any) -> AsyncIterator[None]:
    yield


async def _without_end(self: Forwarding, caller: Any, context: CallContext, request: Any, deadline: float) -> Any:
    return await relay(context, request, caller, me=self._me)


async def _deaf(*_: Any) -> None:
    await trio.sleep_forever()


_ANSWER: Final = Forwarding.answer
_LOCKS: Final[dict[int, trio.Lock]] = {}


async def _one_at_a_time(self: Dispatch, context: CallContext, request: Any, serve_here: Any) -> Any:
    async with _LOCKS.setdefault(id(self), trio.Lock()):
        return await _CALL(self, context, request, serve_here)


_CALL: Final = Dispatch.__call__


async def _here_instead(self: Dispatch, context: CallContext, request: Any, serve_here: Any) -> Any:
    if trio.current_time() % 3 < 1:
        context.meta = structs.replace(context.meta, region=self._region)
    return await _CALL(self, context, request, serve_here)


_REPEATS: Final = [0]


async def _relay_without_key(context: CallContext, request: Any, caller: Any, *, me: str) -> Any:
    if context.meta.request_id is not None:
        _REPEATS[0] += 1
        context.meta = structs.replace(context.meta, request_id=RequestID(session=f"again-{_REPEATS[0]}", seq=1))
    return await relay(context, request, caller, me=me)


_MEMBER: Final = Wan._member


def _member_never_fails(self: Wan, news: MemberNews) -> None:
    if news.kind is not NewsKind.FAILED:
        _MEMBER(self, news)


_SEEN: Final = Directory.member_seen


def _stays_dead(self: Directory, member: Any, *, is_suspect: bool = False) -> bool:
    before = self._servers.get(member.name)
    if before is not None and not before.is_alive:
        return False
    return _SEEN(self, member, is_suspect=is_suspect)


def _first_hint_counts(self: Directory, hint: Any) -> bool:
    return self._hints.setdefault(hint.region, hint) is hint


def _rest_for_ever(self: Router, server: Server, error: str, now: float) -> None:
    _FAILED(self, server, error, now)
    self._troubles[server.id].rests_until = now + 600.0


_FAILED: Final = Router.failed


def _forget_at_once(self: GossipCore, _: object) -> None:
    self._is_reconnecting = False


def _no_way_back(self: GossipCore, region: str) -> bool:
    return False


def _ask_nobody(enabled: int, known: Any) -> int | None:
    newest = max(version or 0 for version in known)
    return newest if newest > enabled else None


def _share_forgotten(plant: rollout_mutants.Plant) -> None:
    """The share is not stored with the deed: each time a step comes it is the first time."""
    from fedsched.federation import rollout_share

    real = rollout_share.received

    def received(share: Any, command: Any, *, refusal: str = "") -> Any:
        outcome = real(share, command, refusal=refusal)
        if outcome.deed is not None and share is not None:
            return rollout_share.Received(share, outcome.deed, outcome.report)
        return outcome

    plant(rollout_share, "received", received)


MUTANTS: Final = (
    #
    _one("the region filter is dropped", Directory, "servers", _servers_of_all, ("R-63", "R-64")),
    _one("dead servers are dialled for ever", Router, "_ordered", _everybody, ("R-63",)),
    _one("nobody listens for signs of life", silence, "_watch", _deaf, ("R-63 fails fast", "every request")),
    Mutant(
        "a lost region is waited for",
        (Patch(forwarding, "unless_silent", _unwatched), Patch(Forwarding, "_ask", _without_end)),
        ("R-63", "every request"),
    ),
    _one("calls wait for one another", Dispatch, "__call__", _one_at_a_time, ("R-63", "every request")),
    _one("calls for others are answered here", Dispatch, "__call__", _here_instead, ("R-63", "R-67"), quick=True),
    _one("a broken link counts as an answer", forwarding, "_is_lost", lambda *_: False, ("R-63",)),
    #
    _one("deaths are kept from the directory", Wan, "_member", _member_never_fails, ("R-64", "R-63")),
    _one("the dead stay dead", Directory, "member_seen", _stays_dead, ("R-64",)),
    _one("the first hint is believed for ever", Directory, "leader_told", _first_hint_counts, ("R-64 leaders",)),
    _one("who failed rests for ever", Router, "failed", _rest_for_ever, ("R-64", "R-67")),
    _one("nobody is rejoined", GossipCore, "_reconnect", _forget_at_once, ("R-64",), at=CUTS),
    _one("failed regions are forgotten", GossipCore, "_is_failed_region", _no_way_back, ("R-64",), quick=True, at=CUTS),
    #
    Mutant("shares are not stored with deeds", (), ("R-65",), True, ROLLOUTS),
    *(Mutant(name, patches, broken, quick) for name, patches, broken, quick in federation_rollout_mutants.MUTANTS),
    #
    _one("requests are repeated without their key", forwarding, "relay", _relay_without_key, ("R-67 once",)),
    _one("versions are enabled unasked", versions, "version_to_enable", _ask_nobody, ("nothing crashes", "R-67")),
)


@contextmanager
def planted(mutant: Mutant) -> Iterator[None]:
    """The bug is there inside, and gone afterwards."""

    def plant_all(plant: rollout_mutants.Plant) -> None:
        for patch in mutant.patches:
            plant(patch.where, patch.attribute, patch.instead)
        if mutant.where == ROLLOUTS:
            _share_forgotten(plant)

    with rollout_mutants.planted(plant_all):
        yield


def hunt(mutant: Mutant, seeds_max: int = SEEDS_MAX) -> Catch:
    """Plant a bug and run seeds from 0 on until it is noticed."""
    began = time.process_time()
    with planted(mutant):
        for seed in range(seeds_max):
            broken = _broken_at(mutant, seed)
            if broken is not None:
                return Catch(mutant.name, seed, broken.invariant, str(broken)[:120], time.process_time() - began)
    return Catch(mutant.name, -1, "", "NOT NOTICED", time.process_time() - began)


def _broken_at(mutant: Mutant, seed: int) -> Broken | None:
    if not mutant.where:
        return run_seed(seed).broken
    try:
        if mutant.where == CUTS:
            long_cuts.run_seed(seed)
        else:
            World(seed).run()
    except Broken as broken:
        return broken
    return None


def is_right(catch: Catch, mutant: Mutant) -> bool:
    """Whether the promise that the bug breaks has noticed it."""
    return catch.seed >= 0 and catch.invariant.startswith(mutant.broken)


def main(arguments: list[str] | None = None, say: Callable[[str], None] = print) -> int:
    parser = argparse.ArgumentParser(prog="python -m fedsched.sim.federation_mutants", description=__doc__)
    parser.add_argument("names", nargs="*", help="only these")
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, help="how many seeds each may take")
    given = parser.parse_args(arguments)
    missed = 0
    for mutant in MUTANTS:
        if given.names and mutant.name not in given.names:
            continue
        catch = hunt(mutant, given.seeds)
        missed += not is_right(catch, mutant)
        verdict = "" if is_right(catch, mutant) else "WRONG: "
        say(f"{mutant.name:<42} seed {catch.seed:>3} {catch.cpu_s:>6.1f} s  {verdict}{catch.what}")
    say(f"{missed} not noticed, or by the wrong promise")
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())

"""Schedules written by hand, for races that random ones would need a night to meet.

A scenario is an ordinary run: fixed options without any random fault, and a schedule whose moments were chosen so that
the race happens. It names the rare paths of the core that it must reach; a test holds it to that, so that a scenario
which has drifted past its race is noticed. Mutants are let loose on all scenarios before the seeds.

Messages take 10 ms here and a sync between one half and one and a half; an election takes 42 ms from the leap that
starts it (ask, answer, sync, ask, sync, answer).
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fedsched.sim.options import Options
from fedsched.sim.schedule import Action

MS = 1_000


class Scenario(NamedTuple):
    name: str
    what: str
    options: Options
    schedule: list[Action]
    reaches: tuple[str, ...]
    """Marks of `fedsched.raft.rare` that the run must hit, each as often as it is named."""


def _options(**changes: Any) -> Options:
    plain: dict[str, Any] = {
        "election_ticks": 10,
        "heartbeat_ticks": 2,
        "latency_us": 10 * MS,
        "jitter_us": 0,
        "sync_us": MS,
        "keep_unsynced": 1.0,
        "message_bytes_max": 4_096,
        "window_messages": 64,
        "clients": 1,
        "keys": 1,
        "chaos_us": 5_000 * MS,
    }
    return Options(**{**plain, **changes})


def _at(ms: float, kind: str, **args: Any) -> Action:
    return Action(int(ms * MS), kind, args)


def _cut(ms: float, side: list[int], until_ms: float) -> Action:
    """Between these slots and all others."""
    for_us = int((until_ms - ms) * MS)
    return _at(ms, "cut", shape="halves", side=side, pair=[0, 0], for_us=for_us)


def _cut_pair(ms: float, one: int, other: int, until_ms: float) -> Action:
    for_us = int((until_ms - ms) * MS)
    return _at(ms, "cut", shape="pair", side=[], pair=[one, other], for_us=for_us)


A, B, C, D, E = range(5)

OVERWRITTEN_AND_BACK = Scenario(
    "overwritten_and_back",
    "while one slow sync is under way, an entry is written, overwritten by another leader, and written again: the first"
    " completion must not be taken for the last one's",
    _options(servers=5),
    [
        _at(100, "leap", slot=A),
        _cut(300, [A, E], 851),
        _at(305, "slow_sync", slot=E, extra_us=2_500 * MS, for_us=4_000 * MS),
        _at(310, "burst", slot=A, count=1),  # on A and E only
        _at(815, "leap", slot=B),  # wins with C and D at 857; its first entry shall reach E alone
        _cut_pair(850, B, C, 2_500),
        _cut_pair(850, B, D, 2_500),
        _cut_pair(850, B, A, 2_500),
        _cut_pair(880, B, E, 2_500),
        _at(890, "leap", slot=A),  # hears of the newer term
        _at(940, "leap", slot=A),  # wins with C and D, and brings E back to the first entry
    ],
    ("truncate_conflict", "truncate_conflict", "stored_in_old_term"),
)

SNAPSHOT_MEETS_MATCHING_LOG = Scenario(
    "snapshot_meets_matching_log",
    "while a snapshot is being fetched another leader brings the same entries and more, not yet known to be committed:"
    " what follows the snapshot must stay",
    _options(servers=3, transfer_us=3_000 * MS),
    [
        _at(100, "leap", slot=A),
        _at(200, "burst", slot=A, count=2),
        _cut(300, [C], 450),
        _at(310, "burst", slot=A, count=3),  # B holds these, but will not hear that they are committed
        _cut_pair(325, A, B, 6_000),
        _at(400, "snapshot", slot=A, keep=0),
        _cut_pair(560, A, C, 1_200),  # C has been offered the snapshot by now; later it goes on fetching
        _at(1_065, "leap", slot=B),  # wins with C
        _at(1_101, "slow_sync", slot=C, extra_us=3_400 * MS, for_us=100 * MS),
    ],
    ("snapshot_over_matching_log",),
)

LONGER_BUT_OLDER = Scenario(
    "longer_but_older",
    "a leader that was cut off comes back with many entries that nobody has, asks for votes while the present leader is"
    " down, and must not get any: the other log is shorter but of a newer term",
    _options(servers=3),
    [
        _at(100, "leap", slot=A),
        _cut(300, [A], 960),
        _at(310, "burst", slot=A, count=6),
        _at(815, "leap", slot=B),  # leads with C, and commits its first entry
        _at(955, "crash", slot=B, down_us=1_500 * MS),
        _at(1_470, "leap", slot=A),  # C has just given up on B
    ],
    ("truncate_conflict",),
)

LATE_REPLIES = Scenario(
    "late_replies",
    "replies to heartbeats of long ago reach a leader that was unseated without knowing it, while a read waits for its"
    " round: they must not confirm it",
    _options(servers=3),
    [
        _at(100, "leap", slot=A),
        _at(300, "clog", slot=A, way="in", for_us=720 * MS),
        _at(400, "one_way", slot=A, way="out", for_us=2_000 * MS),
        _at(915, "leap", slot=B),  # leads with C, and commits its first entry
        _at(1_000, "operation", client=0, op="get", key="k0", slot=A, size=0),
    ],
    (),
)

LEAVER_HOLDS_THE_END = Scenario(
    "leaver_holds_the_end",
    "a leader takes itself out and is cut off with the entry that ends its vote: the other still needs that vote and"
    " must not get it, for its log is shorter, so the one that leaves has to lead once more",
    _options(servers=2),
    [
        _at(100, "leap", slot=A),
        _at(400, "config", what="remove", pick=0, is_checked=False, any_leader=False),
        _cut(416, [A], 2_000),  # the reply that commits the joint config is on its way to A; what follows never leaves
    ],
    ("leaver_campaigns",),
)

SCENARIOS = (
    OVERWRITTEN_AND_BACK,
    SNAPSHOT_MEETS_MATCHING_LOG,
    LONGER_BUT_OLDER,
    LATE_REPLIES,
    LEAVER_HOLDS_THE_END,
)
BY_NAME = {scenario.name: scenario for scenario in SCENARIOS}

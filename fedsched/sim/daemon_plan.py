"""What a run of daemons is: sizes, weather and a list of faults, all drawn from its seed before anything happens.

As at the other depth every seed leaves most of the faults out: few at a time reach further than all at once.
"""

from __future__ import annotations

import random

import msgspec

from fedsched.sim.streams import stream

FAULTS = (
    "crash",
    "crash_leader",
    "crash_all",
    "crash_at",
    "stop",
    "stop_at",
    "cut",
    "one_way",
    "isolate_leader",
    "reset",
    "slow_link",
    "slow_disk",
    "sync_error",
    "short_disk",
    "transfer",
    "dance",
    "snapshot",
    "laggard",
    "restore",
    "membership",
    "cancel_calls",
)
"""What may happen. `crash*`: the power goes, now and then together with the kernel that would have told the others.
`stop`: an orderly end. `*_at`: at a moment that no clock would hit, inside some event of the server. `dance`: one after
the other leads. `laggard`: one server is away while the others write and cut snapshots."""

CHAOS_S = 14.0
MEAN_GAP_S = 0.7
RESTORES_MAX = 3
"""Servers keep a few images; who is further behind than that is not promised a way back by itself."""


class Action(msgspec.Struct, frozen=True):
    """One fault: when, what, to whom (a number to be taken modulo the servers), and for how long."""

    at: float
    kind: str
    who: int
    for_s: float


class DaemonOptions(msgspec.Struct, frozen=True):
    """One run. Times are virtual seconds."""

    seed: int
    servers: int
    spares: int
    """Servers that belong to no region yet, for membership changes."""
    clients: int
    keys: int
    think_s: float
    burst: int
    burst_every_s: float
    """How many propose at once, at most, and how often."""
    call_s: float
    """How long a client waits for one answer."""
    sync_s: float
    keep_unsynced: float
    delay_s: float
    fragment: float
    window_bytes: int
    thread_s: float
    """How long a blocking call takes, at most."""
    cpu_s: float
    """What applying one entry costs of a slice, at most."""
    closing_s: float
    """How long a leader's services take to close."""
    snapshot_entries: int
    chaos_s: float
    plan: tuple[Action, ...]


def draw(seed: int) -> DaemonOptions:
    """The run with this seed."""
    rng = stream(seed, "daemon-options")
    kinds = rng.sample(FAULTS, rng.choice((2, 4, 9)))
    return DaemonOptions(
        seed=seed,
        servers=rng.choice((3, 3, 3, 4, 5)),
        spares=1 if "membership" in kinds else 0,
        clients=rng.choice((3, 4, 5)),
        keys=rng.choice((2, 3, 4)),
        think_s=rng.choice((0.05, 0.2, 0.4)),
        burst=rng.choice((2, 6, 15)),
        burst_every_s=rng.choice((0.1, 0.5)),
        call_s=rng.choice((0.3, 2.0)),
        sync_s=rng.choice((0.0005, 0.005, 0.04)),
        keep_unsynced=rng.choice((0.0, 0.5, 0.9)),
        delay_s=rng.choice((0.0003, 0.003, 0.02)),
        fragment=rng.choice((0.0, 0.2)),
        window_bytes=rng.choice((1_000, 65_536)),
        thread_s=rng.choice((0.001, 0.05)),
        cpu_s=rng.choice((0.0, 0.004)),
        closing_s=rng.choice((0.0, 0.0, 0.2, 5.0)),
        snapshot_entries=rng.choice((5, 20, 1_000)),
        chaos_s=CHAOS_S,
        plan=tuple(_plan(stream(seed, "daemon-faults"), kinds)),
    )


def _plan(rng: random.Random, kinds: list[str]) -> list[Action]:
    """Faults at any distance from each other, so that some overlap."""
    plan: list[Action] = []
    at = 1.5 * rng.random()
    while at < CHAOS_S - 0.5:
        for_s = rng.choice((0.3, 1.0, 2.5, 5.0)) * (0.5 + rng.random())
        kind = rng.choice(kinds)
        if kind == "restore" and sum(action.kind == kind for action in plan) >= RESTORES_MAX:
            kind = "snapshot"
        plan.append(Action(round(at, 6), kind, rng.randrange(0, 60), round(for_s, 6)))
        at += rng.expovariate(1 / MEAN_GAP_S)
    return plan

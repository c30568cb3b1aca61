"""What a run is: the option record drawn from a seed before anything else.

Swarm testing: every seed turns a random half of the features off, because a few at a time reach further than all at
once. The record can be printed, saved and loaded, so that an old failure survives changes to how options are drawn.
"""

from __future__ import annotations

from typing import Any

import msgspec

from fedsched.sim.streams import stream

TICK_US = 50_000
FEATURES = (
    # network
    "drop",
    "delay",
    "reorder",
    "duplicate",
    "cut",
    "one_way",
    "midstream",
    "clog",
    # disk
    "slow_sync",
    "sync_error",
    "disk_full",
    "bit_flip",
    # processes and clocks
    "crash",
    "crash_point",
    "crash_all",
    "wipe",
    "clone",
    "pause",
    "clock_rates",
    # users
    "reads",
    "cas",
    "config",
    "transfer",
    "snapshot",
    "burst",
    # how the runner around a core behaves
    "batching",
    "slow_apply",
    "codec",
    "epoch",
)
"""Each is off in half of all seeds. What they do stands where they are used."""

THEMES: dict[str, tuple[str, ...]] = {
    "": (),
    "divergence": ("cut", "burst", "one_way", "crash"),
    "membership": ("config", "cut", "crash", "crash_point", "burst"),
    "snapshots": ("snapshot", "cut", "burst", "midstream"),
    "disks": ("slow_sync", "cut", "burst", "crash"),
    "reads": ("reads", "cut", "delay", "duplicate", "pause"),
}
"""What a seed is about: these features are on whatever else was drawn, so that they meet often."""

STANDING = ("deaf", "deaf_leader", "mute_leader", "down", "down_leader", "pair")
"""Faults of a minority that the rest must live with: see `region.Region.stand`."""

JOB_STORE = "job_store"
"""The real state store in place of the small one. Costs twice as much per event, so only some seeds have it."""
JOB_STORE_SHARE = 0.12

EVENTS_CHAOS = 1_100
"""The chaos phase is made about this many events long; healing and the liveness check add some hundreds."""


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """One run, together with the seed. All times in microseconds of simulated time."""

    servers: int = 3
    theme: str = ""
    features: tuple[str, ...] = ()
    chaos_us: int = 6_000_000
    election_ticks: int = 8
    heartbeat_ticks: int = 2
    clients: int = 3
    keys: int = 2
    operation_every_us: int = 150_000
    """Mean time between two operations of all clients together."""
    fault_every_us: int = 700_000
    config_every_us: int = 1_200_000
    transfer_every_us: int = 2_500_000
    snapshot_every_us: int = 900_000
    burst_every_us: int = 500_000
    favourite: int = 0
    """The slot that faults pick most often: trouble that gathers in one place reaches further."""
    latency_us: int = 2_000
    jitter_us: int = 6_000
    drop: float = 0.05
    duplicate: float = 0.05
    reorder: float = 0.2
    far_delay: float = 0.05
    """Share of messages that take up to two election timeouts."""
    sync_us: int = 3_000
    sloth_us: int = 0
    """How much longer every sync of the favourite takes, all the time."""
    keep_unsynced: float = 0.5
    """Chance at a crash that each next unsynced transaction is found on disk anyway."""
    batch_us: int = 4_000
    apply_us: int = 8_000
    transfer_us: int = 20_000
    """Mean time to fetch a snapshot."""
    standing: str = ""
    """A fault on one server that stays while the others must already make progress; empty for none."""
    message_bytes_max: int = 4_096
    window_messages: int = 8
    uncommitted_bytes: int = 1 << 26
    weights: dict[str, int] = {}
    """How often each fault is picked against the others."""

    def has(self, feature: str) -> bool:
        return feature in self.features

    @property
    def election_us(self) -> int:
        """The longest election timeout that a server with an exact clock can draw."""
        return 2 * self.election_ticks * TICK_US


def draw_options(seed: int) -> Options:
    """The options of a seed. What users and faults do is paced by the election timeout, so that they meet elections."""
    rng = stream(seed, "options")
    servers = rng.choices((1, 2, 3, 4, 5), weights=(1, 1, 7, 2, 5))[0]
    theme = rng.choice(sorted(THEMES))
    drawn = {*rng.sample(FEATURES, len(FEATURES) // 2), *THEMES[theme]}
    if rng.random() < JOB_STORE_SHARE:
        drawn.add(JOB_STORE)
    features = tuple(sorted(drawn))
    election_ticks = rng.randint(3, 7)
    heartbeat_ticks = rng.randint(1, max(1, election_ticks // 3))
    unit_us = 2 * election_ticks * TICK_US
    operation_every_us = int(unit_us * rng.choice((0.06, 0.15, 0.4)))
    return Options(
        servers=servers,
        theme=theme,
        features=features,
        chaos_us=_chaos_us(servers, heartbeat_ticks, operation_every_us),
        election_ticks=election_ticks,
        heartbeat_ticks=heartbeat_ticks,
        clients=rng.randint(1, 6),
        keys=rng.randint(1, 3),
        operation_every_us=operation_every_us,
        fault_every_us=int(unit_us * rng.choice((0.5, 1.0, 2.0))),
        config_every_us=int(unit_us * rng.choice((0.3, 0.7) if theme == "membership" else (0.7, 1.5, 4.0))),
        transfer_every_us=int(unit_us * rng.choice((1.5, 4.0))),
        snapshot_every_us=int(unit_us * rng.choice((0.2, 0.7, 2.0))),
        burst_every_us=int(unit_us * rng.choice((0.4, 1.2))),
        favourite=rng.randrange(servers),
        latency_us=rng.choice((500, 2_000, 10_000)),
        jitter_us=rng.choice((1_000, 10_000, 40_000)),
        drop=rng.choice((0.02, 0.1, 0.25)),
        duplicate=rng.choice((0.02, 0.1, 0.3)),
        reorder=rng.choice((0.1, 0.4)),
        far_delay=rng.choice((0.02, 0.1)),
        sync_us=rng.choice((500, 3_000, 20_000)),
        sloth_us=int(unit_us * rng.choice((0.0, 0.6, 1.5, 4.0))) if theme in ("disks", "snapshots") else 0,
        keep_unsynced=rng.choice((0.0, 0.5, 0.9)),
        batch_us=rng.choice((1_000, 8_000)),
        apply_us=rng.choice((2_000, 20_000, 100_000)),
        transfer_us=int(unit_us * rng.choice((1.0, 3.0, 6.0) if theme == "snapshots" else (0.01, 0.1, 1.0))),
        standing=rng.choice(("", "", "", *STANDING)),
        message_bytes_max=rng.choice((200, 600, 4_096)),
        window_messages=rng.choice((2, 4, 64)),
        uncommitted_bytes=rng.choice((1_000, 1 << 26)),
        weights={name: rng.choice((1, 2, 6)) for name in FEATURES},
    )


def _chaos_us(servers: int, heartbeat_ticks: int, operation_every_us: int) -> int:
    """So long that about `EVENTS_CHAOS` events happen: ticks, heartbeats there and back, and operations."""
    ticks_per_s = 1_000_000 / TICK_US
    beats = 2 * (servers - 1) * ticks_per_s / heartbeat_ticks
    operations = 1_000_000 / operation_every_us * 8
    return int(EVENTS_CHAOS / (ticks_per_s * servers + beats + operations) * 1_000_000)


def save(options: Options) -> str:
    """The record as JSON, readable by people."""
    return msgspec.json.format(msgspec.json.encode(options), indent=2).decode()


def load(text: str | bytes) -> Options:
    """The reverse of `save`; raises `msgspec.ValidationError` for anything else."""
    return msgspec.json.decode(text, type=Options)


def changed(options: Options, **changes: Any) -> Options:
    """The same options but for some fields."""
    return msgspec.structs.replace(options, **changes)

"""The list of everything done *to* a run: faults and users' wishes, each with its time.

The whole list is drawn from the seed before the run starts and does not depend on what happens in it: "the leader" or
"some learner" is found out when the moment comes. That is what makes a failure shrinkable: leave out half of the list
and run again.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec

from fedsched.sim.options import Options
from fedsched.sim.streams import stream

LEADER = -1
"""In place of a slot: whoever leads at that moment."""
STALE_LEADER = -2
"""Whoever has thought for longest that it leads."""


class Action(msgspec.Struct, frozen=True):
    """One thing done to the run: a fault's name or a user's wish, and its parameters."""

    at_us: int
    kind: str
    args: dict[str, Any]


def draw_schedule(seed: int, options: Options) -> list[Action]:
    """Everything that will be done to the run of this seed, in time order."""
    actions = [*_operations(seed, options), *_faults(seed, options)]
    for kind, every_us, draw in (
        ("config", options.config_every_us, _config),
        ("transfer", options.transfer_every_us, _transfer),
        ("snapshot", options.snapshot_every_us, _snapshot),
        ("burst", options.burst_every_us, _burst),
    ):
        if options.has(kind):
            rng = stream(seed, f"workload/{kind}")
            actions += [Action(at, kind, draw(rng, options)) for at in moments(rng, every_us, options.chaos_us)]
    return sorted(actions, key=lambda action: action.at_us)


def moments(rng: random.Random, every_us: int, until_us: int) -> list[int]:
    """Random times with this mean distance."""
    found = []
    at = rng.expovariate(1 / every_us)
    while at < until_us:
        found.append(int(at))
        at += rng.expovariate(1 / every_us)
    return found


def _operations(seed: int, options: Options) -> list[Action]:
    rng = stream(seed, "workload")
    kinds = ["put"]
    if options.has("cas"):
        kinds.append("cas")
    if options.has("reads"):
        kinds += ["get", "get"]
    return [
        Action(
            at,
            "operation",
            {
                "client": rng.randrange(options.clients),
                "op": rng.choice(kinds),
                "key": f"k{rng.randrange(options.keys)}",
                "slot": rng.choice((LEADER, STALE_LEADER, STALE_LEADER, rng.randrange(options.servers))),
                "size": rng.choice((0, 0, 0, 40, 300)),
            },
        )
        for at in moments(rng, options.operation_every_us, options.chaos_us)
    ]


def _config(rng: random.Random, options: Options) -> dict[str, Any]:
    return {
        "what": rng.choice(("add", "add", "promote", "promote", "demote", "remove", "replace", "readdress")),
        "pick": rng.randrange(1_000),
        "is_checked": rng.random() < 0.5,
        "any_leader": rng.random() < 0.3,
    }


def _transfer(rng: random.Random, options: Options) -> dict[str, Any]:
    return {"to": rng.choice((LEADER, rng.randrange(options.servers)))}


def _snapshot(rng: random.Random, options: Options) -> dict[str, Any]:
    return {"slot": rng.choice((LEADER, rng.randrange(options.servers + 2))), "keep": rng.choice((0, 0, 3, 20))}


def _burst(rng: random.Random, options: Options) -> dict[str, Any]:
    """Some writes at once that nobody waits for: they fill the log of a leader that may be cut off."""
    return {"slot": rng.choice((LEADER, STALE_LEADER, STALE_LEADER)), "count": rng.randint(1, 6)}


# --- faults -----------------------------------------------------------------------------------------------------------


def _faults(seed: int, options: Options) -> list[Action]:
    rng = stream(seed, "faults")
    kinds = [name for name in FAULTS if options.has(name)]
    if not kinds:
        return []
    weights = [options.weights.get(kind, 1) * OFTEN.get(kind, 1) for kind in kinds]
    actions = []
    for at in moments(rng, options.fault_every_us, options.chaos_us):
        kind = rng.choices(kinds, weights=weights)[0]
        actions.append(Action(at, kind, FAULTS[kind](rng, options)))
    return actions


def _for_us(rng: random.Random, options: Options) -> int:
    """Short or long against an election timeout, both often."""
    return int(options.election_us * rng.choice((0.2, 1.0, 2.0, 3.0)) * (0.5 + rng.random()))


def _slot(rng: random.Random, options: Options) -> int:
    return rng.choice((LEADER, LEADER, options.favourite, rng.randrange(options.servers + 1)))


def _draw_cut(rng: random.Random, options: Options) -> dict[str, Any]:
    """One pair, or the whole server set in two: the leader alone, the leader with one follower, any halves."""
    shape = rng.choice(("pair", "leader", "leader_and_one", "leader_and_one", "halves"))
    side = sorted(rng.sample(range(options.servers), rng.randint(1, max(1, options.servers // 2))))
    pair = [rng.choice((options.favourite, rng.randrange(options.servers))), _slot(rng, options)]
    return {"shape": shape, "side": side, "pair": pair, "for_us": _for_us(rng, options)}


def _draw_one_way(rng: random.Random, options: Options) -> dict[str, Any]:
    return {"slot": _slot(rng, options), "way": rng.choice(("in", "out")), "for_us": _for_us(rng, options)}


def _draw_midstream(rng: random.Random, options: Options) -> dict[str, Any]:
    return {"slot": _slot(rng, options), "survivors": rng.randrange(3), "is_noticed": rng.random() < 0.7}


def _draw_slot_for(rng: random.Random, options: Options) -> dict[str, Any]:
    return {"slot": _slot(rng, options), "for_us": _for_us(rng, options)}


def _draw_slow_sync(rng: random.Random, options: Options) -> dict[str, Any]:
    extra_us = int(options.election_us * rng.choice((0.05, 0.5, 2.0, 5.0)))
    slot = rng.choice((options.favourite, options.favourite, _slot(rng, options)))
    return {"slot": slot, "extra_us": extra_us, "for_us": 2 * _for_us(rng, options)}


def _draw_bit_flip(rng: random.Random, options: Options) -> dict[str, Any]:
    return {"slot": _slot(rng, options), "entry": rng.randrange(10_000), "bit": rng.randrange(10_000)}


def _draw_crash_point(rng: random.Random, options: Options) -> dict[str, Any]:
    points = ("before_sends", "half_sends", "before_write", "after_write", "after_sync", "half_replies", "after_apply")
    return {"slot": _slot(rng, options), "point": rng.choice(points), "down_us": _for_us(rng, options) // 4}


def _draw_crash(rng: random.Random, options: Options) -> dict[str, Any]:
    return {"slot": _slot(rng, options), "down_us": _for_us(rng, options) // 3}


def _draw_rate(rng: random.Random, options: Options) -> dict[str, Any]:
    return {"slot": rng.randrange(options.servers), "rate": round(rng.uniform(0.5, 2.0), 2)}


FAULTS = {
    "cut": _draw_cut,
    "one_way": _draw_one_way,
    "midstream": _draw_midstream,
    "clog": _draw_one_way,
    "slow_sync": _draw_slow_sync,
    "sync_error": _draw_crash,
    "disk_full": _draw_slot_for,
    "bit_flip": _draw_bit_flip,
    "crash": _draw_crash,
    "crash_point": _draw_crash_point,
    "crash_all": _draw_crash,
    "wipe": _draw_crash,
    "clone": _draw_slot_for,
    "pause": _draw_slot_for,
    "clock_rates": _draw_rate,
}
"""How each fault's parameters are drawn; `faults` carries them out."""

OFTEN = {"cut": 5, "one_way": 3, "crash": 3, "crash_point": 3, "pause": 2, "clog": 2, "slow_sync": 2, "midstream": 2}
"""Faults that make logs diverge are worth more than those that only stop or lose a server."""

"""What the nemesis will do, drawn from a seed before anything starts, so that it can be printed, stored and replayed.

A plan speaks of roles ("leader", "follower"), not of names: who leads is known only when the step comes. A replayed
plan is therefore repeated in intent, not in timing, which is all that real processes allow.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedsched.sim.streams import stream

LEADER, FOLLOWER, ALL = "leader", "follower", "all"

KILL = "kill"
"""kill -9, then a restart on the same data directory when the step ends."""
PAUSE = "pause"
"""SIGSTOP, and SIGCONT when the step ends."""
ISOLATE = "isolate"
"""The target hears nobody and nobody hears it; clients still reach it."""
DEAF = "deaf"
"""The target's words arrive, but it hears nobody: the leader that cannot know it was deposed."""
MUTE = "mute"
"""The target hears everybody, but its words are lost: the leader whose heartbeats vanish."""
BRIDGE = "bridge"
"""One follower and the leader lose each other; both reach the third server."""
FLAP = "flap"
"""The target is cut off and healed again several times within the step."""
STALL = "stall"
"""Bytes to and from the target are held back and delivered late, in one burst."""
BREAK = "break"
"""The target's connections are reset in mid-frame."""
SLOW = "slow"
"""Every byte to and from the target takes longer."""

LEADER_FAULTS = (KILL, KILL, KILL, PAUSE, PAUSE)
"""Drawn from evenly: a crash and a stall of the leader are what an operator meets most."""

OTHER_FAULTS = (
    (ISOLATE, LEADER),
    (DEAF, LEADER),
    (MUTE, LEADER),
    (BRIDGE, FOLLOWER),
    (FLAP, FOLLOWER),
    (FLAP, LEADER),
    (STALL, LEADER),
    (STALL, FOLLOWER),
    (BREAK, LEADER),
    (BREAK, FOLLOWER),
    (SLOW, FOLLOWER),
    (ISOLATE, FOLLOWER),
    (KILL, FOLLOWER),
    (PAUSE, FOLLOWER),
    (KILL, ALL),
)

PAUSES_S = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 10.0)
"""Below, around and far above the election timeout of 1 to 2 s."""

ROUND_LEADER_FAULTS, ROUND_OTHER_FAULTS = 7, 3
"""A round is drawn, shuffled and done before the next: every stretch of a run sees the whole mix."""

REST_S = 2.5
"""Quiet after a step: long enough for a restarted server to follow again, short enough for 60 in 10 minutes."""


@dataclass(frozen=True, kw_only=True)
class Step:
    """One fault: what, to whom, for how long, and how long to leave the region alone afterwards."""

    kind: str
    target: str
    hold_s: float
    rest_s: float = REST_S
    pick: int = 0
    """Which follower is meant, where there are several."""
    number: float = 0
    """What the kind needs one of: seconds of delay, bytes until the break, flaps in the step."""

    @property
    def hits_leader_process(self) -> bool:
        return self.target in (LEADER, ALL) and self.kind in (KILL, PAUSE)

    def __str__(self) -> str:
        return f"{self.kind} {self.target} for {self.hold_s:g} s"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """A whole run's faults. `--plan FILE` replays one that was stored."""

    seed: int
    minutes: float
    steps: list[Step] = field(default_factory=list)

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)

    @staticmethod
    def from_json(text: str) -> Plan:
        fields: dict[str, Any] = json.loads(text)
        return Plan(**{**fields, "steps": [Step(**step) for step in fields["steps"]]})

    @staticmethod
    def load(path: Path) -> Plan:
        return Plan.from_json(path.read_text())


def draw_plan(seed: int, minutes: float) -> Plan:
    """The plan of a seed: as many whole rounds' worth of steps as fit into the time."""
    chance = stream(seed, "nemesis")
    steps: list[Step] = []
    spent_s = 0.0
    for step in _endless(chance):
        spent_s += step.hold_s + step.rest_s
        if spent_s > minutes * 60:
            break
        steps.append(step)
    return Plan(seed=seed, minutes=minutes, steps=steps)


def _endless(chance: random.Random) -> Iterator[Step]:
    others: list[tuple[str, str]] = []
    while True:
        if len(others) < ROUND_OTHER_FAULTS:  # each kind once before any comes twice
            others = chance.sample(OTHER_FAULTS, len(OTHER_FAULTS))
        drawn = [(chance.choice(LEADER_FAULTS), LEADER) for _ in range(ROUND_LEADER_FAULTS)]
        drawn += [others.pop() for _ in range(ROUND_OTHER_FAULTS)]
        chance.shuffle(drawn)
        for kind, target in drawn:
            yield _draw_step(kind, target, chance)


def _draw_step(kind: str, target: str, chance: random.Random) -> Step:
    match kind:
        case "kill":
            hold_s = round(chance.uniform(0.3, 3.0), 2)
        case "pause":
            hold_s = chance.choice(PAUSES_S)
        case _:
            hold_s = round(chance.uniform(2.5, 6.0), 2)
    number = {
        FLAP: float(chance.randint(2, 6)),
        BREAK: float(chance.randint(1, 2000)),
        SLOW: round(chance.uniform(0.02, 0.3), 3),
    }.get(kind, 0.0)
    return Step(kind=kind, target=target, hold_s=hold_s, pick=chance.randrange(1000), number=number)

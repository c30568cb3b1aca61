"""What a simulated federation is like and what happens to it, drawn from its seed before it starts.

Some regions are left alone: nothing happens inside them, and nobody writes to them from outside. What they do must not
depend on anything that happens elsewhere, so a second run in which they have the world to themselves must be the same
for them. Jobs of several regions are the business of the others; in some federations nobody is left alone.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Final

from fedsched.sim.streams import stream

NAMES: Final = ("eu", "us", "asia", "africa", "mars")
CALM_S: Final = 4.0
"""Before anything goes wrong: everybody registers and gets going."""
CHAOS_S: Final = 32.0
FROZEN_MAX_S: Final = 20.0
WAN_KINDS: Final = ("cut off", "cut off", "cut", "cut one way", "cut one way")
WISHES: Final = ("submit", "submit", "submit", "unblock", "fail", "stop")
OWN_KINDS: Final = ("stall", "leader killed", "leader steps down", "restart", "rolling restart", "upgrade")


@dataclass(frozen=True, slots=True)
class Trouble:
    """One thing that goes wrong, or is done to a region."""

    at_s: float
    kind: str
    region: str
    other: str = ""
    length_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Wish:
    """What somebody wants of a job of several regions."""

    at_s: float
    kind: str
    job_id: str
    through: str
    """In which region people ask."""
    regions: tuple[str, ...] = ()
    """Whom a new version lists; whom a rollout is unblocked or failed in, all if none."""
    max_parallel: int = 1
    on_failure: str = ""
    on_unreachable: str = ""
    unwell: tuple[str, ...] = ()
    """Where the new version never gets healthy."""
    count: int = 1
    reverts: bool = False
    """Whether its regions go back by themselves; whether failing by hand brings the old version back."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A federation's nature and fate."""

    regions: tuple[str, ...]
    left_alone: tuple[str, ...]
    far_s: float
    loss: float
    troubles: tuple[Trouble, ...]
    wishes: tuple[Wish, ...] = ()

    def undisturbed(self) -> Plan:
        """As if there were nobody else in the world, and nothing went wrong in it."""
        return replace(self, regions=self.left_alone, troubles=(), wishes=())

    def has(self, kind: str) -> bool:
        return any(one.kind == kind for one in self.troubles)


def draw_plan(seed: int) -> Plan:
    chance = stream(seed, "federation-plan")
    regions = NAMES[: chance.choice((2, 2, 3, 3, 3, 4, 5))]
    left_alone = tuple(sorted(chance.sample(regions, 1 if len(regions) < 4 else 2)))
    turns = stream(seed, "federation-rollouts")
    if len(regions) < 4 and turns.random() < 0.6:
        left_alone = ()
    others = [name for name in regions if name not in left_alone]
    troubles: list[Trouble] = []
    for _ in range(chance.randrange(1, 4)):
        one, other = chance.sample(regions, 2)
        at_s = CALM_S + chance.random() * CHAOS_S * 0.8
        length_s = min(chance.choice((1.0, 6.0, 30.0)) * (0.5 + chance.random()), CALM_S + CHAOS_S - at_s)
        troubles.append(Trouble(at_s, chance.choice(WAN_KINDS), one, other, length_s))
    for name in others:
        at_s = CALM_S
        for _ in range(chance.randrange(0, 3)):
            at_s += 1.0 + chance.random() * 12.0
            length_s = min(chance.choice((2.0, 8.0, FROZEN_MAX_S)), CALM_S + CHAOS_S - at_s)
            if length_s > 0:
                troubles.append(Trouble(at_s, chance.choice(OWN_KINDS), name, length_s=length_s))
    if chance.random() < 0.25:
        at_s = CALM_S + chance.random() * CHAOS_S * 0.5
        troubles.append(Trouble(at_s, "lost", chance.choice(others)))
    wishes = _draw_wishes(turns, others) if len(others) > 1 else []
    return Plan(
        regions=regions,
        left_alone=left_alone,
        far_s=chance.choice((0.005, 0.03, 0.12)),
        loss=chance.choice((0.0, 0.0, 0.02, 0.05)),
        troubles=tuple(sorted(troubles, key=lambda one: (one.at_s, one.kind, one.region))),
        wishes=tuple(sorted(wishes, key=lambda one: one.at_s)),
    )


def _draw_wishes(chance: Random, regions: list[str]) -> list[Wish]:
    wishes: list[Wish] = []
    for number in range(chance.choice((1, 1, 2))):
        job_id = f"spread-{number}"
        wishes.append(_new_version(chance, 1.0 + 2.0 * chance.random(), job_id, regions, well=chance.random() < 0.7))
        at_s = CALM_S
        while (at_s := at_s + 1.0 + chance.random() * 9.0) < CALM_S + CHAOS_S:
            kind = chance.choice(WISHES)
            if kind == "submit":
                wishes.append(_new_version(chance, at_s, job_id, regions, well=chance.random() < 0.5))
                continue
            some = tuple(chance.sample(regions, 1)) if chance.random() < 0.4 else ()
            wish = Wish(at_s, kind, job_id, chance.choice(regions), some, reverts=chance.random() < 0.3)
            wishes.append(wish)
    return wishes


def _new_version(chance: Random, at_s: float, job_id: str, regions: list[str], *, well: bool) -> Wish:
    listed = chance.sample(regions, len(regions) if chance.random() < 0.75 else max(1, len(regions) - 1))
    return Wish(
        at_s,
        "submit",
        job_id,
        through=chance.choice(regions),
        regions=tuple(listed),
        max_parallel=chance.choice((0, 1, 1, 1, 2)),
        on_failure=chance.choice(("", "fail_all", "fail_local")),
        on_unreachable=chance.choice(("", "fail", "skip", "wait")),
        unwell=() if well else (chance.choice(listed),),
        count=chance.choice((1, 1, 2)),
        reverts=chance.random() < 0.3,
    )

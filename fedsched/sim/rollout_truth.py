"""What the simulation of rollouts knows to be true: regions, and who drives or looks after an owner in them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from fedsched.federation.adoption_core import AdoptionCore
from fedsched.federation.adoption_watch import AdoptionWatch
from fedsched.federation.rollout_core import RolloutCore
from fedsched.model.deployment import DeploymentStatus
from fedsched.model.rollout import Rollout, RolloutShare, RolloutStep

_S = DeploymentStatus
NAMES = ("eu", "us", "asia", "africa", "mars")
DEADLINE_S = 300.0
ASK_S = 4.0
ROUND_S = 6.0
"""In which a region asks all others how they stand."""
TROUBLE_S = 900.0
"""After this every cut is healed (but for lost regions), nothing is lost any more, and nobody crashes."""
HELP_S = 3000.0
"""After this a person looks at a rollout that waits for one."""
END_S = 6000.0
PROMISE = "R-65 rollouts over cuts"


@dataclass
class Region:
    """The truth about one region."""

    name: str
    fails: bool
    takes_s: float
    refuses: bool
    share: RolloutShare | None = None
    deeds: Counter[RolloutStep] = field(default_factory=Counter)
    cuts: list[tuple[float, float]] = field(default_factory=list)
    lost_at: float = float("inf")
    healthy_at: float = float("inf")
    held: list[Callable[[], None]] = field(default_factory=list)
    """Questions for the status that wait for news."""
    record: Rollout | None = None
    """The owner's record, if it was written here."""
    watch: AdoptionWatch | None = None
    """Of its leader; None while it has none."""
    watch_wakes_at: float = float("inf")
    elected_at: float = 0.0
    heard_at: dict[str, float] = field(default_factory=dict)
    """When each region last said something here that its leader took for a sign of life."""

    @property
    def status(self) -> DeploymentStatus:
        return self.share.status if self.share is not None else _S.INITIALIZING


@dataclass(eq=False)
class Driver:
    """A server of `region` that drives the rollout, or tries to adopt it."""

    region: Region
    core: RolloutCore | AdoptionCore
    is_alive: bool = True
    wakes_at: float = float("inf")

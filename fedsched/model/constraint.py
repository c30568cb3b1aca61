"""Where an allocation may run (constraint), would rather run (affinity), and how copies are spread."""

from __future__ import annotations

from typing import Annotated

from fedsched.model.record import Record


class Constraint(Record):
    """A test that a node must pass."""

    l_target: Annotated[str, "What is looked at, such as `${attr.kernel.name}`."] = ""
    r_target: Annotated[str, "What it is compared with."] = ""
    operand: Annotated[str, "The comparison; `=` unless said."] = "="


class Affinity(Record):
    """A test that a node had better pass; its weight says how much better."""

    l_target: Annotated[str, "What is looked at."] = ""
    r_target: Annotated[str, "What it is compared with."] = ""
    operand: Annotated[str, "The comparison; `=` unless said."] = "="
    weight: Annotated[int, "-100 (keep away) to 100 (come here), not 0."] = 50


class SpreadTarget(Record):
    """The wanted share of one value of the attribute."""

    value: str = ""
    percent: Annotated[int, "0 to 100; all targets together at most 100."] = 0


class Spread(Record):
    """Spread copies evenly, or by percent, over the values of an attribute."""

    attribute: str = ""
    weight: Annotated[int, "1 to 100, against the other spreads."] = 50
    spread_target: tuple[SpreadTarget, ...] = ()

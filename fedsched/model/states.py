"""One table per state machine: which move from one status to another is possible."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from enum import StrEnum
from typing import Generic, TypeVar

S = TypeVar("S", bound=StrEnum)


class ImpossibleMove(Exception):
    """A broken promise, not a refusal: some code asked for a transition that no rule allows."""


class Moves(Generic[S]):
    """The transition table of one kind of status. Staying put is always possible; a state without a row is final."""

    def __init__(self, kind: type[S], table: Mapping[S, AbstractSet[S]]) -> None:
        self._kind = kind
        self.table: dict[S, frozenset[S]] = {state: frozenset(table.get(state, ())) for state in kind}

    def allows(self, old: S, new: S) -> bool:
        return old == new or new in self.table[old]

    def check(self, old: S, new: S, *, about: str) -> None:
        """Raise `ImpossibleMove` unless `old` may become `new`; `about` names the record and why it moves."""
        if not self.allows(old, new):
            possible = ", ".join(sorted(self.table[old])) or "nothing, it is final"
            raise ImpossibleMove(
                f"{about}: {self._kind.__name__} cannot go from {old!s} to {new!s}, only to {possible}"
            )

    def is_final(self, state: S) -> bool:
        return not self.table[state]

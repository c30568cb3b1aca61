"""When changed templates are rendered again, and what is done about it then. No clock, no chance, no input or output.

Data that keeps changing is waited for: a template is rendered once its data has been quiet for `wait_min_s`, at the
latest `wait_max_s` after the first change. If that made another file, the strongest wish among those that changed is
carried out after a random part of the longest splay: a restart makes signals and scripts needless, signals and scripts
go side by side. What changes until then is carried out together.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fedsched.model.task import ChangeScript


@dataclass(frozen=True, slots=True)
class TemplateRules:
    """One template, as far as changes are concerned."""

    change_mode: str = "restart"
    signal: str = ""
    script: ChangeScript | None = None
    wait_min_s: float = 0.0
    wait_max_s: float = 0.0
    splay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Act:
    """What is to be done to the task."""

    restart: bool = False
    signals: tuple[str, ...] = ()
    scripts: tuple[ChangeScript, ...] = ()

    def __bool__(self) -> bool:
        return self.restart or bool(self.signals) or bool(self.scripts)


NOTHING = Act()


class TemplateWatchCore:
    """The templates of one task after their first rendering."""

    def __init__(self, rules: Sequence[TemplateRules]) -> None:
        self._rules = tuple(rules)
        self._since: dict[int, float] = {}
        """Templates whose data has changed, and when it first did."""
        self._render_at: dict[int, float] = {}
        self._changed: set[int] = set()
        """Templates that made another file and have not been acted upon."""
        self._act_at = math.inf

    def touched(self, numbers: Iterable[int], now: float) -> None:
        """Data of these templates is other than before."""
        for number in numbers:
            rules = self._rules[number]
            since = self._since.setdefault(number, now)
            self._render_at[number] = min(now + rules.wait_min_s, since + max(rules.wait_min_s, rules.wait_max_s))

    def to_render(self, now: float) -> list[int]:
        """Templates whose time has come; they are not named again until they are touched."""
        due = sorted(number for number, at in self._render_at.items() if at <= now)
        for number in due:
            del self._render_at[number], self._since[number]
        return due

    def rendered(self, number: int, now: float, roll: float) -> None:
        """A template made another file than before. `roll` is from 0 to 1."""
        self._changed.add(number)
        if self._rules[number].change_mode == "noop":
            return
        splay_s = max(self._rules[one].splay_s for one in self._changed)
        self._act_at = min(self._act_at, now + splay_s * roll)

    def act(self, now: float) -> Act:
        """What is to be done now, once."""
        if self._act_at > now:
            return NOTHING
        changed = [self._rules[number] for number in sorted(self._changed)]
        self.settled()
        if any(rules.change_mode == "restart" for rules in changed):
            return Act(restart=True)
        signals = dict.fromkeys(rules.signal for rules in changed if rules.change_mode == "signal")
        scripts = (rules.script for rules in changed if rules.change_mode == "script")
        return Act(signals=tuple(signals), scripts=tuple(script for script in scripts if script is not None))

    def settled(self) -> None:
        """Nothing has to be done about what changed so far: the task starts with the files as they are."""
        self._changed.clear()
        self._act_at = math.inf

    def wake_at(self) -> float:
        """When there is something to do next; infinity if only a change can tell."""
        return min([*self._render_at.values(), self._act_at])

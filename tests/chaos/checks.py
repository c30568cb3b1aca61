"""What must be true after a run, each check with its words when it is not."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from fedsched.sim.linear import CAS, GET, PUT, Operation, Verdict, check_key
from tests.chaos.nemesis import Outcome

RESUME_P99_S = 4.0
RESUME_MAX_S = 10.0
"""Writes must go on within these times of a fault that leaves a majority connected."""

_TRACEBACK = re.compile(r"Traceback \(most recent call last\)|Exception Group Traceback|^Fatal Python error", re.M)


def linearizable(
    history: Sequence[Operation], *, progress: Callable[[int, int], None] = lambda _done, _all: None
) -> list[str]:
    """Every key's history has an order that explains it. Undecided is a failure too, never a pass."""
    by_key: dict[str, list[Operation]] = {}
    for operation in history:
        by_key.setdefault(operation.key, []).append(operation)
    problems = []
    for number, (key, operations) in enumerate(sorted(by_key.items())):
        verdict, what = check_key(operations)
        if verdict is not Verdict.OK:
            problems.append(f"{key} is {verdict.value}: {what}")
        progress(number + 1, len(by_key))
    return problems


def acknowledged_writes_kept(history: Iterable[Operation], final: Mapping[str, tuple[str | None, int]]) -> list[str]:
    """The last acknowledged write of each key is what is there at the end, unless something later replaced it."""
    last: dict[str, tuple[int, str]] = {}
    open_values: dict[str, set[str]] = {}
    for operation in history:
        if operation.op not in (PUT, CAS):
            continue
        value = operation.argument if operation.op == PUT else operation.argument[1]
        if operation.info:
            open_values.setdefault(operation.key, set()).add(value)
        elif operation.result is not None:
            last[operation.key] = max(last.get(operation.key, (0, "")), (operation.result, value))
    problems = []
    for key, (index, value) in sorted(last.items()):
        there, at = final.get(key, (None, 0))
        is_kept = there == value and at == index
        is_replaced = at > index and there in open_values.get(key, set())
        if not is_kept and not is_replaced:
            problems.append(
                f"{key}: {value!r} was acknowledged at index {index}, but at the end {there!r} is there at {at}"
            )
    return problems


def logs_clean(logs: Mapping[str, str]) -> list[str]:
    """No server logged a traceback: whatever happened, it was foreseen."""
    problems = []
    for name, text in sorted(logs.items()):
        found = [match.start() for match in _TRACEBACK.finditer(text)]
        if found:
            lines = text[max(0, found[0] - 300) :].splitlines()[:40]
            problems.append(f"{name} logged {len(found)} tracebacks, the first:\n    " + "\n    ".join(lines))
    return problems


def exits_clean(codes: Mapping[str, int]) -> list[str]:
    return [f"{name} ended with {code} after SIGTERM" for name, code in sorted(codes.items()) if code != 0]


def resumed_in_time(outcomes: Iterable[Outcome], p99_s: float = RESUME_P99_S, max_s: float = RESUME_MAX_S) -> list[str]:
    """After a fault that leaves a majority, writes go on soon."""
    times = [o.resumed_s for o in outcomes if o.has_quorum and o.resumed_s is not None]
    if not times:
        return ["no fault was followed by a write: nothing was measured"]
    problems = []
    if percentile(times, 0.99) > p99_s:
        problems.append(f"writes resumed within {percentile(times, 0.99):.2f} s at p99; the limit is {p99_s:g} s")
    if max(times) > max_s:
        problems.append(f"writes once took {max(times):.2f} s to resume; the limit is {max_s:g} s")
    return problems


def enough_done(outcomes: Sequence[Outcome], counts: Counter[str], minutes: float) -> list[str]:
    """A run that did next to nothing must not look like one that found nothing."""
    problems = []
    hits = sum(outcome.step.hits_leader_process for outcome in outcomes)
    wanted = 4 if minutes < 2 else int(minutes * 6)
    if hits < wanted:
        problems.append(f"only {hits} leader kills or pauses in {minutes:g} minutes; {wanted} are needed")
    writes, reads = counts[PUT] + counts[CAS], counts[GET]
    if min(writes, reads) < minutes * 100:
        problems.append(f"only {writes} writes and {reads} reads in {minutes:g} minutes")
    return problems


def percentile(values: Iterable[float], share: float) -> float:
    """The smallest value that at least this share of all values does not exceed."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * share) - 1)]

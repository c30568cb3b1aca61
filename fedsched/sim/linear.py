"""Is this history linearizable? Registers with compare-and-set by modify index, one key at a time.

Two passes. The cheap one looks, in linear time, for what broken systems usually do: a value from nowhere, a stale read,
a lost update, a write applied twice, writes out of order. The full one is the search of Wing and Gong with Lowe's memo
(set of linearized operations + state). The search is exponential at worst, so it has a step limit, and hitting it is
the separate verdict `UNDECIDED`: a reason to run again with fewer operations per key, never a pass.

An operation whose outcome is unknown stays open for ever: it may take effect at any moment after its call, or never.
Written values must be unique per key. Histories travel as JSON lines (see `Operation`).
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from enum import Enum
from typing import Any, NamedTuple

import msgspec

PUT, CAS, GET, DELETE = "put", "cas", "get", "delete"
STEPS_MAX = 400_000
"""Some seconds of search on one key; good histories of 300 operations need a few thousand."""


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """One call of one client, as a line of a history.

    | op | argument | result |
    | --- | --- | --- |
    | put | value | modify index |
    | cas | [expected modify index, value] | modify index, or null when it was refused as outdated |
    | delete | null | modify index |
    | get | null | [value, modify index], or [null, 0] when there is nothing |
    """

    client: str
    op: str
    key: str
    argument: Any = None
    result: Any = None
    call: float
    ret: float | None = msgspec.field(default=None, name="return")
    info: bool = False
    """The outcome is not known; `return` and `result` mean nothing then."""


class Verdict(Enum):
    OK = "ok"
    BROKEN = "broken"
    UNDECIDED = "undecided"


class Finding(NamedTuple):
    """What is wrong with one key."""

    key: str
    verdict: Verdict
    what: str


def check(history: Iterable[Operation], *, steps_max: int = STEPS_MAX, seconds_max: float = 60.0) -> list[Finding]:
    """One finding for each key that is not plainly linearizable; an empty list is the pass."""
    by_key: dict[str, list[Operation]] = {}
    for operation in history:
        by_key.setdefault(operation.key, []).append(operation)
    findings = []
    for key in sorted(by_key):
        verdict, what = check_key(by_key[key], steps_max=steps_max, seconds_max=seconds_max)
        if verdict is not Verdict.OK:
            findings.append(Finding(key, verdict, what))
    return findings


def check_key(
    operations: list[Operation], *, steps_max: int = STEPS_MAX, seconds_max: float = 60.0
) -> tuple[Verdict, str]:
    """The verdict on one key: first the linear pass, then the search."""
    operations = [operation for operation in operations if not (operation.info and operation.op == GET)]
    problem = first_pass(operations)
    if problem:
        return Verdict.BROKEN, problem
    return _search(operations, steps_max, seconds_max)


# --- histories as JSON lines ------------------------------------------------------------------------------------------


def to_lines(history: Iterable[Operation]) -> str:
    """A history as JSON lines, one operation each."""
    return "".join(msgspec.json.encode(operation).decode() + "\n" for operation in history)


def from_lines(text: str) -> list[Operation]:
    """The reverse of `to_lines`; raises `msgspec.ValidationError` for a line that is no operation."""
    return [msgspec.json.decode(line, type=Operation) for line in text.splitlines() if line.strip()]


# --- the linear pass --------------------------------------------------------------------------------------------------


def first_pass(operations: list[Operation]) -> str:
    """The first plain violation found, in words; empty when there is none (which proves nothing yet)."""
    for look in (_values_from_nowhere, _indexes_disagree, _goes_back, _lost_updates):
        problem = look(operations)
        if problem:
            return problem
    return ""


def _written(operation: Operation) -> Any:
    return operation.argument[1] if operation.op == CAS else operation.argument


def _writers(operations: list[Operation]) -> dict[Any, Operation]:
    """Who wrote each value. A refused compare-and-set wrote nothing."""
    return {
        _written(operation): operation
        for operation in operations
        if operation.op in (PUT, CAS) and (operation.info or operation.result is not None)
    }


def _values_from_nowhere(operations: list[Operation]) -> str:
    writers = _writers(operations)
    for read in operations:
        if read.op != GET or read.result[0] is None:
            continue
        writer = writers.get(read.result[0])
        if writer is None:
            return f"value from nowhere: {read.client} read {read.result[0]!r}, which nobody wrote"
        if read.ret is not None and read.ret < writer.call:
            return f"value from nowhere: {read.client} read {read.result[0]!r} before {writer.client} wrote it"
    return ""


def _index_of(operation: Operation) -> int | None:
    """The modify index this operation saw or made; None when it does not tell."""
    if operation.info:
        return None
    if operation.op == GET:
        return int(operation.result[1]) or None
    return None if operation.result is None else int(operation.result)


def _indexes_disagree(operations: list[Operation]) -> str:
    """A value has one modify index and an index has one value; otherwise something was applied twice."""
    index_of_value: dict[Any, int] = {}
    value_at_index: dict[int, Any] = {}
    for operation in operations:
        index = _index_of(operation)
        if index is None:
            continue
        value = operation.result[0] if operation.op == GET else _written(operation)
        if value is not None and index_of_value.setdefault(value, index) != index:
            return f"double apply: {value!r} was seen at modify index {index_of_value[value]} and at {index}"
        if value_at_index.setdefault(index, value) != value:
            return f"lost write: modify index {index} was given to {value_at_index[index]!r} and to {value!r}"
    return ""


def _goes_back(operations: list[Operation]) -> str:
    """No operation may see or make an index below one that was complete before it began."""
    moments: list[tuple[float, int, int]] = []
    for number, operation in enumerate(operations):
        if _index_of(operation) is not None:
            moments.append((operation.call, 0, number))
            moments.append((float(operation.ret or 0), 1, number))
    highest, by = 0, ""
    floor: dict[int, tuple[int, str]] = {}
    for _, is_return, number in sorted(moments):
        if not is_return:
            floor[number] = (highest, by)
            continue
        operation = operations[number]
        index = _index_of(operation) or 0
        below, whose = floor[number]
        if index < below:
            what = "stale read" if operation.op == GET else "reordering"
            return (
                f"{what}: {operation.client} {operation.op} at index {index}, though {whose} had reached {below} before"
            )
        if index > highest:
            highest, by = index, f"{operation.client}'s {operation.op}"
    if any(operation.op == DELETE for operation in operations):
        return ""
    return _reads_nothing_late(operations)


def _reads_nothing_late(operations: list[Operation]) -> str:
    """Without deletes, a key that was there once stays there."""
    done = [operation.ret for operation in operations if _index_of(operation) is not None and operation.ret is not None]
    since = min(done, default=None)
    for read in operations:
        if read.op == GET and read.result[0] is None and since is not None and read.call > since:
            return f"lost write: {read.client} read nothing though the key had been written before"
    return ""


def _lost_updates(operations: list[Operation]) -> str:
    """Between the index a compare-and-set expected and the one it made, nothing else may have been written."""
    made = sorted({index for operation in operations if (index := _index_of(operation)) is not None})
    before = dict(zip(made[1:], made, strict=False))
    for operation in operations:
        if operation.op != CAS or operation.info or operation.result is None:
            continue
        expected = int(operation.argument[0])
        if before.get(int(operation.result), 0) > expected:
            return (
                f"lost update: {operation.client} replaced index {expected} by {operation.result},"
                f" but {before[int(operation.result)]} lay between"
            )
    return ""


# --- the search -------------------------------------------------------------------------------------------------------

_State = tuple[Any, int | None]
"""Value and modify index; the index is None after a write whose outcome nobody heard."""


def _step(state: _State, operation: Operation) -> _State | None:
    """The state after this operation if its result fits, else None."""
    value, index = state
    if operation.op == GET:
        seen, at = operation.result
        if seen != value or (index is not None and index != at):
            return None
        return (value, at)
    made = None if operation.info else operation.result
    if operation.op == CAS:
        expected = operation.argument[0]
        if made is None and not operation.info:
            return state if index != expected else None
        if index is not None and index != expected:
            return None
    if made is not None and index is not None and made <= index:
        return None
    if operation.op == DELETE:
        return (None, 0)
    return (_written(operation), made)


class _Node:
    """A call or a return in the list of what is still to be explained."""

    __slots__ = ("bit", "match", "next", "operation", "prev")

    def __init__(self, operation: Operation | None, bit: int) -> None:
        self.operation = operation
        self.bit = bit
        self.match: _Node | None = None
        self.prev: _Node | None = None
        self.next: _Node | None = None


def _linked(operations: list[Operation]) -> tuple[_Node, int]:
    """All calls and returns in time order behind a head, and how many returns there are."""
    moments: list[tuple[float, int, int, _Node]] = []
    returns = 0
    for number, operation in enumerate(operations):
        call = _Node(operation, 1 << number)
        moments.append((operation.call, 0, number, call))
        if not operation.info:
            call.match = _Node(None, 0)
            returns += 1
            moments.append((float(operation.ret or 0), 1, number, call.match))
    head = last = _Node(None, 0)
    for *_, node in sorted(moments, key=lambda moment: moment[:3]):
        last.next, node.prev = node, last
        last = node
    return head, returns


def _lift(node: _Node) -> None:
    """Take a call and its return out of the list."""
    for each in (node, node.match):
        if each is not None:
            assert each.prev is not None
            each.prev.next = each.next
            if each.next is not None:
                each.next.prev = each.prev


def _unlift(node: _Node) -> None:
    """Put a lifted pair back where it was."""
    for each in (node.match, node):
        if each is not None:
            assert each.prev is not None
            each.prev.next = each
            if each.next is not None:
                each.next.prev = each


def _search(operations: list[Operation], steps_max: int, seconds_max: float) -> tuple[Verdict, str]:
    head, returns_left = _linked(operations)
    state: _State = (None, 0)
    done = 0
    seen: set[tuple[int, _State]] = set()
    stack: list[tuple[_Node, _State]] = []
    node = head.next
    stop_at = time.monotonic() + seconds_max
    steps = 0
    while returns_left:
        steps += 1
        if steps > steps_max or (not steps % 4096 and time.monotonic() > stop_at):
            return Verdict.UNDECIDED, f"gave up after {steps} steps on {len(operations)} operations"
        assert node is not None
        if node.operation is not None:
            after = _step(state, node.operation)
            if after is not None and (done | node.bit, after) not in seen:
                seen.add((done | node.bit, after))
                stack.append((node, state))
                state = after
                done |= node.bit
                returns_left -= node.match is not None
                _lift(node)
                node = head.next
            else:
                node = node.next
            continue
        if not stack:
            return Verdict.BROKEN, f"no order of the {len(operations)} operations explains their results"
        node, state = stack.pop()
        done ^= node.bit
        returns_left += node.match is not None
        _unlift(node)
        node = node.next
    return Verdict.OK, ""

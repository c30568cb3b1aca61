"""The judge of histories is itself judged: by planted violations, all of which it must find."""

from __future__ import annotations

import random
from typing import Any

import msgspec
import pytest

from fedsched.sim.linear import Operation, Verdict, check, check_key, first_pass, from_lines, to_lines

PLANTED = 40


def an_operation(op: str, call: float, ret: float | None = None, **fields: Any) -> Operation:
    return Operation(
        client=fields.get("client", "c1"),
        op=op,
        key=fields.get("key", "k"),
        argument=fields.get("argument"),
        result=fields.get("result"),
        call=call,
        ret=call + 1 if ret is None and not fields.get("info") else ret,
        info=fields.get("info", False),
    )


def put(call: float, value: str, index: int, **fields: Any) -> Operation:
    return an_operation("put", call, argument=value, result=index, **fields)


def cas(call: float, expected: int, value: str, index: int | None, **fields: Any) -> Operation:
    return an_operation("cas", call, argument=[expected, value], result=index, **fields)


def get(call: float, value: str | None, index: int, **fields: Any) -> Operation:
    return an_operation("get", call, result=[value, index], **fields)


def a_good_history(seed: int, operations: int = 60, clients: int = 5) -> list[Operation]:
    """Random operations of concurrent clients on a true register, each taking effect somewhere within its time."""
    rng = random.Random(seed)
    plans = []
    at = [0.0] * clients
    for number in range(operations):
        client = rng.randrange(clients)
        call = at[client] + rng.random()
        effect = call + rng.random()
        at[client] = ret = effect + rng.random()
        plans.append((effect, call, ret, f"c{client}", rng.choice(("put", "cas", "get", "get")), f"v{number}"))
    value, index = None, 0
    history = []
    for log_index, (_, call, ret, client, op, new) in enumerate(sorted(plans), start=1):
        is_unknown = op != "get" and rng.random() < 0.1
        fields = {"client": client, "ret": None if is_unknown else ret, "info": is_unknown}
        if op == "get":
            history.append(get(call, value, index, **fields))
        elif op == "put":
            value, index = new, log_index
            history.append(put(call, new, log_index, **fields))
        else:
            expected = index if rng.random() < 0.6 else index + 100
            made = log_index if expected == index else None
            if made is not None:
                value, index = new, log_index
            history.append(cas(call, expected, new, made, **fields))
    return history


@pytest.mark.parametrize("seed", range(30))
def test_histories_of_a_true_register_pass(seed: int) -> None:
    assert check(a_good_history(seed)) == []


def sequential(*operations: Operation) -> list[Operation]:
    return list(operations)


def test_reading_what_was_overwritten_before_the_read_began_is_a_stale_read() -> None:
    history = sequential(put(0, "a", 1), put(2, "b", 2), get(4, "a", 1))

    assert "stale read" in first_pass(history)
    assert check_key(history)[0] is Verdict.BROKEN


def test_reading_nothing_after_a_write_is_a_lost_write() -> None:
    assert "lost write" in first_pass(sequential(put(0, "a", 1), get(2, None, 0)))


def test_reading_a_value_that_nobody_wrote_comes_from_nowhere() -> None:
    assert "nowhere" in first_pass(sequential(put(0, "a", 1), get(2, "z", 7)))


def test_reading_a_value_before_its_write_was_called_comes_from_nowhere() -> None:
    assert "nowhere" in first_pass(sequential(get(0, "a", 5), put(4, "a", 5)))


def test_two_writes_on_the_same_expected_index_lose_an_update() -> None:
    history = sequential(put(0, "a", 1), cas(2, 1, "b", 2), cas(4, 1, "c", 3))

    assert "lost update" in first_pass(history)


def test_one_value_at_two_indexes_was_applied_twice() -> None:
    history = sequential(put(0, "a", 1), put(2, "b", 2), get(4, "a", 3))

    assert "double apply" in first_pass(history)


def test_one_index_for_two_writes_means_that_one_was_lost() -> None:
    assert "lost write" in first_pass(sequential(put(0, "a", 1), put(2, "b", 1)))


def test_a_later_write_with_a_lower_index_was_reordered() -> None:
    assert "reordering" in first_pass(sequential(put(0, "a", 5), put(2, "b", 3)))


def test_only_the_search_sees_that_a_refused_write_should_have_succeeded() -> None:
    history = sequential(put(0, "a", 1), cas(2, 1, "b", None), get(4, "a", 1))

    assert first_pass(history) == ""
    assert check_key(history)[0] is Verdict.BROKEN


def test_only_the_search_sees_a_value_that_comes_back() -> None:
    history = [
        put(0, "a", 1, client="c1"),
        an_operation("put", 2, argument="b", info=True, client="c2"),
        get(3, "b", 2, client="c3"),
        an_operation("get", 5, result=["a", 1], client="c3"),
    ]

    assert check_key(history)[0] is Verdict.BROKEN


def test_an_unknown_outcome_may_take_effect_at_any_later_time_or_never() -> None:
    unknown = an_operation("put", 0, argument="late", info=True, client="c9")

    assert check([unknown, put(1, "a", 1), get(3, "a", 1), get(50, "late", 9)]) == []
    assert check([unknown, put(1, "a", 1), get(3, "a", 1)]) == []


def test_a_deleted_key_may_be_read_as_nothing() -> None:
    history = sequential(put(0, "a", 1), an_operation("delete", 2, result=2), get(4, None, 0), put(6, "b", 3))

    assert check(history) == []


def test_hitting_the_limit_is_a_verdict_of_its_own() -> None:
    history = [an_operation("put", 0, argument=f"v{n}", info=True, client=f"c{n}") for n in range(14)]
    history += [cas(1, 55, "x", None, client="d"), get(5, None, 0, client="d"), cas(7, 0, "y", None, client="d")]

    verdict, what = check_key(history, steps_max=50)

    assert verdict is Verdict.UNDECIDED
    assert "gave up" in what
    assert check(history, steps_max=50)[0].verdict is Verdict.UNDECIDED


def test_a_read_without_an_answer_says_nothing() -> None:
    assert check([put(0, "a", 1), an_operation("get", 0, info=True)]) == []


def test_keys_are_judged_apart() -> None:
    history = [put(0, "a", 1, key="good"), put(0, "a", 1, key="bad"), get(3, "z", 9, key="bad")]

    assert [finding.key for finding in check(history)] == ["bad"]


def test_histories_survive_their_way_through_json_lines() -> None:
    history = a_good_history(7)

    assert from_lines(to_lines(history)) == history
    assert '"return"' in to_lines(history)


def test_a_line_that_is_no_operation_is_refused() -> None:
    with pytest.raises(msgspec.ValidationError):
        from_lines('{"client": "c1"}\n')


# --- planted in large histories: every single one must be found -------------------------------------------------------


def _reads(history: list[Operation]) -> list[int]:
    return [n for n, o in enumerate(history) if o.op == "get" and not o.info and o.result[0] is not None]


def _changed(operation: Operation, **changes: Any) -> Operation:
    return msgspec.structs.replace(operation, **changes)


def _plant_stale_read(history: list[Operation], rng: random.Random) -> list[Operation]:
    end = max(operation.ret or 0 for operation in history) + 1
    done = sorted((o for o in history if o.op == "put" and not o.info), key=lambda o: o.result)
    old, new = done[0], done[-1]
    assert old.result < new.result
    return [*history, get(end, old.argument, old.result, client="late")]


def _plant_lost_update(history: list[Operation], rng: random.Random) -> list[Operation]:
    end = max(operation.ret or 0 for operation in history) + 1
    top = max(o.result for o in history if o.op == "put" and not o.info)
    return [
        *history,
        cas(end, top - 1 if top > 1 else top + 5, "lost1", top + 100),
        cas(end + 2, top, "lost2", top + 101),
    ]


def _plant_double_apply(history: list[Operation], rng: random.Random) -> list[Operation]:
    end = max(operation.ret or 0 for operation in history) + 1
    write = rng.choice([o for o in history if o.op == "put" and not o.info])
    return [*history, put(end, "between", 900), get(end + 2, write.argument, 901)]


def _plant_reordering(history: list[Operation], rng: random.Random) -> list[Operation]:
    end = max(operation.ret or 0 for operation in history) + 1
    return [*history, put(end, "first", 902), put(end + 2, "second", 901)]


def _plant_value_from_nowhere(history: list[Operation], rng: random.Random) -> list[Operation]:
    victim = rng.choice(_reads(history))
    return [_changed(o, result=["never", o.result[1]]) if n == victim else o for n, o in enumerate(history)]


@pytest.mark.parametrize(
    "plant",
    [_plant_stale_read, _plant_lost_update, _plant_double_apply, _plant_reordering, _plant_value_from_nowhere],
)
def test_every_planted_violation_is_found(plant: Any) -> None:
    for seed in range(PLANTED):
        planted = plant(a_good_history(seed), random.Random(seed))

        findings = check(planted)

        assert [finding.verdict for finding in findings] == [Verdict.BROKEN], f"seed {seed} got away"

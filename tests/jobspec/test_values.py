"""Values, their types, and how one becomes another."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsched.jobspec import convert, durations, numbers
from fedsched.jobspec.numbers import Number, NumberProblem
from fedsched.jobspec.problems import JobfileProblems
from fedsched.jobspec.source import Source, Span
from fedsched.jobspec.types import (
    ANY,
    BOOL,
    NUMBER,
    STRING,
    Type,
    can_convert,
    list_of,
    map_of,
    object_of,
    set_of,
    tuple_of,
    unify,
)
from fedsched.jobspec.values import NULL, Value, make_list, make_object, make_set, make_tuple, number, string
from tests.jobspec.asking import in_json, problem, value

HERE = Span(Source("x = 1\n", "here.hcl"), 4, 5)


def _number(text: str) -> Number:
    found = numbers.parse(text)
    assert found is not None
    return found


def _text_of(whole: int, places: int) -> str:
    sign, digits = ("-" if whole < 0 else ""), str(abs(whole)).rjust(places + 1, "0")
    return sign + (f"{digits[:-places]}.{digits[-places:]}" if places else digits)


@given(st.integers(-(10**40), 10**40), st.integers(0, 20))
def test_decimal_text_comes_back_as_written(whole: int, places: int) -> None:
    text = _text_of(whole, places)
    shortest = text.rstrip("0").rstrip(".") if places else text

    assert _number(text).text() in (shortest, "-0" if shortest == "-0" else shortest)


@given(st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300))
def test_a_machine_float_keeps_its_value_and_prints_as_short_as_it_can(amount: float) -> None:
    found = numbers.from_float(amount)

    assert found.to_float() == amount
    assert float(found.text()) == amount
    assert len(found.text().replace(".", "").strip("-0")) <= 17


@given(st.integers(-(10**30), 10**30), st.integers(-(10**30), 10**30))
def test_arithmetic_of_integers_is_exact(a: int, b: int) -> None:
    left, right = _number(str(a)), _number(str(b))

    assert left.add(right).to_int() == a + b
    assert left.subtract(right).to_int() == a - b
    assert left.multiply(right).to_int() == a * b
    assert left.compare(right) == (a > b) - (a < b)
    if b:
        assert left.modulo(right).to_int() == a - b * (abs(a) // abs(b) * (1 if a * b >= 0 else -1))


def test_infinities_follow_their_own_rules() -> None:
    one, zero = _number("1"), _number("0")
    up = one.divide(zero)
    down = up.negate()

    assert (up.text(), down.text()) == ("+Inf", "-Inf")
    assert up.compare(one) == 1
    assert down.compare(up) == -1
    assert up.compare(up) == 0
    assert up.add(one).text() == "+Inf"
    assert one.add(down).text() == "-Inf"
    assert up.multiply(_number("-2")).text() == "-Inf"
    assert one.divide(up).text() == "0"
    assert up.to_float() == math.inf
    assert up.to_int() is None
    for operation in (lambda: zero.multiply(up), lambda: up.divide(up), lambda: up.modulo(one), up.truncated):
        with pytest.raises(NumberProblem):
            operation()


def test_a_number_outside_a_machine_floats_range_becomes_infinite_there() -> None:
    assert _number("1e400").to_float() == math.inf
    assert _number("-1e400").to_float() == -math.inf
    assert _number("1e-400").to_float() == 0


def test_not_a_number_is_refused() -> None:
    with pytest.raises(NumberProblem):
        numbers.from_float(math.nan)


@pytest.mark.parametrize("text", ["", "a", "1_0", "0x1", "1e", ".", "--1", " 1", "1 ", "٣"])
def test_text_that_is_no_number(text: str) -> None:
    assert numbers.parse(text) is None


def test_opaque_data_keeps_integers_that_fit_a_machine() -> None:
    plain = value("[1, 1.5, 9223372036854775807, 9223372036854775808, null, true, { a = [] }]").to_python()

    assert plain == [1, 1.5, 9223372036854775807, 9223372036854775808.0, None, True, {"a": []}]
    assert [type(item) for item in plain[:4]] == [int, float, int, float]


def test_equal_values_hash_alike() -> None:
    assert hash(make_tuple([number(1)])) == hash(make_tuple([number(1.0)]))
    assert make_tuple([NULL]) == make_tuple([NULL])
    assert string("1") != number(1)
    assert string("1") != "1"
    assert "Value(tuple" in repr(make_tuple([number(1)]))


def test_text_is_composed() -> None:
    assert string("e\u0301") == string("\u00e9")
    assert string("a\ud800b").text == "a\ufffdb"


def test_sets_hold_each_value_once_in_order() -> None:
    found = make_set(NUMBER, [number(10), number(9), number(9.0), Value(NUMBER, None)])

    assert [item.to_python() for item in found.elements] == [9, 10, None]


TYPES = [
    STRING,
    NUMBER,
    BOOL,
    ANY,
    list_of(STRING),
    set_of(NUMBER),
    map_of(BOOL),
    tuple_of([]),
    object_of({"a": STRING}),
]


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_null_is_null_in_every_type(kind: Type) -> None:
    assert convert.convert(NULL, kind).is_null


UNIFIED = [
    ([], ANY),
    ([STRING, STRING], STRING),
    ([NUMBER, STRING], STRING),
    ([BOOL, NUMBER], None),
    ([BOOL, STRING, NUMBER], STRING),
    ([STRING, ANY], ANY),
    ([list_of(NUMBER), list_of(STRING)], list_of(STRING)),
    ([list_of(NUMBER), list_of(tuple_of([]))], None),
    ([tuple_of([NUMBER]), list_of(STRING)], list_of(STRING)),
    ([tuple_of([NUMBER]), set_of(NUMBER)], set_of(NUMBER)),
    ([tuple_of([NUMBER]), tuple_of([STRING])], tuple_of([STRING])),
    ([tuple_of([NUMBER]), tuple_of([BOOL])], None),
    ([tuple_of([NUMBER]), tuple_of([BOOL, BOOL])], None),
    ([object_of({"a": NUMBER}), object_of({"a": STRING})], object_of({"a": STRING})),
    ([object_of({"a": NUMBER}), object_of({"a": BOOL})], None),
    ([object_of({"a": NUMBER}), map_of(STRING)], map_of(STRING)),
    ([object_of({"a": NUMBER}), object_of({"b": BOOL})], None),
    ([list_of(NUMBER), set_of(NUMBER)], list_of(NUMBER)),
    ([list_of(NUMBER), map_of(NUMBER)], None),
    ([map_of(NUMBER), map_of(STRING)], map_of(STRING)),
]


@pytest.mark.parametrize(("types", "shared"), UNIFIED)
def test_types_share_the_one_that_loses_nothing(types: list[Type], shared: Type | None) -> None:
    assert unify(types) == shared


@pytest.mark.parametrize(
    ("source", "target", "answer"),
    [
        (tuple_of([NUMBER]), list_of(STRING), True),
        (tuple_of([NUMBER]), map_of(STRING), False),
        (set_of(NUMBER), list_of(STRING), True),
        (map_of(NUMBER), map_of(STRING), True),
        (object_of({"a": NUMBER}), map_of(STRING), True),
        (object_of({"a": NUMBER, "b": BOOL}), object_of({"a": STRING}), True),
        (object_of({"a": NUMBER}), object_of({"b": STRING}), False),
        (tuple_of([NUMBER]), tuple_of([STRING]), True),
        (tuple_of([NUMBER]), tuple_of([]), False),
        (list_of(STRING), STRING, False),
        (STRING, NUMBER, False),
        (STRING, ANY, True),
    ],
)
def test_which_types_convert_without_a_look_at_the_value(source: Type, target: Type, answer: bool) -> None:
    assert can_convert(source, target) is answer


def test_fields_of_a_job_get_plain_values() -> None:
    assert convert.as_string(number(5), HERE) == "5"
    assert convert.as_bool(string("true"), HERE) is True
    assert convert.as_number(string("1.5"), HERE).text() == "1.5"
    assert convert.as_int(string("7"), HERE) == 7
    assert convert.as_strings(make_tuple([number(1), string("a")]), HERE) == ["1", "a"]
    assert convert.as_string_map(make_object({"a": number(1)}), HERE) == {"a": "1"}
    assert convert.as_duration(string("1m30s"), HERE) == 90_000_000_000
    assert convert.as_duration(number(5), HERE) == 5


@pytest.mark.parametrize(
    ("ask", "given", "words"),
    [
        (convert.as_string, NULL, "not null"),
        (convert.as_string, make_tuple([]), "a string is needed, not a tuple"),
        (convert.as_int, number(1.5), "a whole number"),
        (convert.as_int, number(2**70), "between"),
        (convert.as_number, string("many"), 'not "many"'),
        (convert.as_bool, string("True"), "write true in lower case"),
        (convert.as_strings, make_list(STRING, [Value(STRING, None)]), "null cannot stand"),
        (convert.as_string_map, make_object({"a": NULL}), "'a' is null"),
        (convert.as_string_map, make_object({"a": make_tuple([])}), "element 'a': a string is needed"),
        (convert.as_duration, NULL, "no duration"),
        (convert.as_duration, make_tuple([]), "a duration such as"),
        (convert.as_duration, string("5"), "has no unit"),
        (convert.as_duration, number(1.5), "a whole number"),
        (convert.as_number, string("9" * 5000), "digits"),
    ],
)
def test_a_value_that_does_not_fit_is_refused_at_its_place(ask: object, given: Value, words: str) -> None:
    assert callable(ask)
    with pytest.raises(JobfileProblems, match=words) as caught:
        ask(given, HERE)

    assert str(caught.value).startswith("here.hcl:1:5: ")


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("0", 0),
        ("-0", 0),
        ("1h", 3600 * 10**9),
        ("1h30m", 5400 * 10**9),
        ("+10m", 600 * 10**9),
        (".5s", 5 * 10**8),
        ("1.s", 10**9),
        ("-1.5s", -15 * 10**8),
        ("1us", 1000),
        ("1\u00b5s", 1000),
        ("1\u03bcs", 1000),
        ("1.5ns", 1),
        ("100ms2ns", 10**8 + 2),
        ("-9223372036854775808ns", -(2**63)),
    ],
)
def test_a_duration_in_nanoseconds(text: str, nanoseconds: int) -> None:
    assert durations.parse(text) == nanoseconds


@pytest.mark.parametrize(
    "text", ["", "+", "5", "1d", "1 s", "s", ".s", "1h-5m", "9223372036854775808ns", "1" * 200, "1H"]
)
def test_text_that_is_no_duration(text: str) -> None:
    with pytest.raises(durations.NoDuration):
        durations.parse(text)


def test_conversion_says_which_element_is_wrong() -> None:
    assert "element 1: a number is needed" in problem('convert([1, "x"], list(number))')
    assert "element 'a': element 0" not in problem('convert({ a = ["x"] }, map(list(number)))')
    assert in_json("convert({}, map(string))") == "{}"

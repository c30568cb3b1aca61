"""`format` and `formatlist`: printf with the verbs of Go, on exact numbers."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from fedsched.jobspec import numbers
from fedsched.jobspec.context import ArgumentFailed, FunctionFailed
from fedsched.jobspec.convert import Mismatch, convert
from fedsched.jobspec.functions.encoding import json_text, to_json
from fedsched.jobspec.functions.registry import function, nullable
from fedsched.jobspec.graphemes import count_graphemes, split_graphemes
from fedsched.jobspec.limits import MAX_STRING_CHARS
from fedsched.jobspec.numbers import Number
from fedsched.jobspec.problems import too_much
from fedsched.jobspec.types import ANY, BOOL, NUMBER, STRING, Kind, Type
from fedsched.jobspec.values import Value, make_list, string

_VERB: Final = re.compile(r"%([-+# 0]*)(?:\[(\d{1,4})\])?(\d{1,7})?(?:\.(\d{0,4}))?(?:\[(\d{1,4})\])?(.)?", re.DOTALL)
_RADIX: Final = {"b": "b", "d": "d", "o": "o", "x": "x", "X": "X"}


@dataclass(frozen=True, slots=True)
class _Verb:
    text: str
    flags: str
    argument: int | None
    width: int
    precision: int | None
    letter: str
    at: int

    def fails(self, why: str) -> FunctionFailed:
        return FunctionFailed(f"{self.text!r} at {self.at}: {why}")


@function("format", takes=(("format", STRING),), rest=nullable("args", ANY))
def format_(template: Value, *args: Value) -> Value:
    return string(_formatted(template.text, args))


@function("formatlist", takes=(("format", STRING),), rest=nullable("args", ANY))
def formatlist(template: Value, *args: Value) -> Value:
    """One text per element; what is no list is the same in all of them."""
    length, first = None, 0
    for at, arg in enumerate(args, 1):
        if not arg.is_sequence:
            continue
        if length is None:
            length, first = len(arg.elements), at
        elif len(arg.elements) != length:
            detail = f"argument {at} has {len(arg.elements)} elements, argument {first} has {length}"
            raise ArgumentFailed(at, detail)
    rounds = 1 if length is None else length
    rows = [[arg.elements[i] if arg.is_sequence else arg for arg in args] for i in range(rounds)]
    return make_list(STRING, [string(_formatted(template.text, row)) for row in rows])


def _formatted(template: str, args: tuple[Value, ...] | list[Value]) -> str:
    parts: list[str] = []
    at, next_arg, highest, size = 0, 0, 0, 0
    while (found := template.find("%", at)) >= 0:
        parts.append(template[at:found])
        verb = _parse(template, found)
        at = found + len(verb.text)
        if verb.letter == "%":
            parts.append("%")
            continue
        index = next_arg if verb.argument is None else verb.argument - 1
        if not 0 <= index < len(args):
            raise verb.fails(f"there is no argument {index + 1}, only {len(args)}")
        next_arg = index + 1
        highest = max(highest, next_arg)
        parts.append(_shown(verb, args[index]))
        size += len(parts[-1])
        if size > MAX_STRING_CHARS:
            raise too_much("formatting would make the text too long")
    if highest < len(args):
        raise ArgumentFailed(highest + 1, f"there are {len(args)} arguments, but only {highest} are used")
    return "".join([*parts, template[at:]])


def _parse(template: str, at: int) -> _Verb:
    match = _VERB.match(template, at)
    assert match is not None
    letter = match[6]
    if letter is None:
        raise FunctionFailed(f"the format ends in the middle of {match[0]!r}")
    argument = match[5] or match[2]
    precision = None if match[4] is None else int(match[4] or "0")
    return _Verb(match[0], match[1], int(argument) if argument else None, int(match[3] or "0"), precision, letter, at)


def _shown(verb: _Verb, value: Value) -> str:
    letter = verb.letter
    if letter == "v":
        return _padded(verb, _as_is(verb, value))
    if letter not in "tsqbdoxXeEfFgG":
        raise verb.fails(f"there is no {letter!r}")
    if value.is_null:
        raise verb.fails("null cannot be formatted")
    if letter == "t":
        return _padded(verb, "true" if _wanted(verb, value, BOOL).raw else "false")
    if letter in "sq":
        text = _wanted(verb, value, STRING).text
        if verb.precision is not None:
            text = "".join(list(split_graphemes(text))[: verb.precision])
        return _padded(verb, text if letter == "s" else json_text(text))
    number = _wanted(verb, value, NUMBER).number
    if letter in _RADIX:
        whole = number.to_int()
        if whole is None:
            raise verb.fails("a whole number is needed")
        return _signed(verb, whole < 0, _integer(verb, abs(whole)))
    if number.infinite:
        return _padded(verb, number.text())
    return _signed(verb, number.negative, _decimal(verb, number))


def _as_is(verb: _Verb, value: Value) -> str:
    if "#" not in verb.flags and not value.is_null:
        if value.kind is Kind.STRING:
            return value.text
        if value.kind is Kind.NUMBER:
            sign = "-" if value.number.negative else ""
            return value.number.text() if value.number.infinite else sign + _general(value.number, None, "e")
    return to_json(value)


def _wanted(verb: _Verb, value: Value, type_: Type) -> Value:
    try:
        return convert(value, type_)
    except Mismatch as error:
        raise verb.fails(str(error)) from None


def _integer(verb: _Verb, whole: int) -> str:
    prefix = {"b": "0b", "o": "0", "x": "0x", "X": "0X"}.get(verb.letter, "") if "#" in verb.flags else ""
    digits = format(whole, _RADIX[verb.letter])
    if verb.precision is not None:
        digits = digits.rjust(verb.precision, "0")
    return prefix + digits


def _decimal(verb: _Verb, number: Number) -> str:
    if verb.letter in "fF":
        return _fixed(number, 6 if verb.precision is None else verb.precision)
    if verb.letter in "eE":
        places = 6 if verb.precision is None else verb.precision
        digits, point = _digits(number, places + 1)
        return _exponential(digits.ljust(places + 1, "0"), point, verb.letter)
    return _general(number, verb.precision, "e" if verb.letter == "g" else "E")


def _fixed(number: Number, places: int) -> str:
    scaled = number.mantissa * 10**places
    if number.exponent >= 0:
        whole = scaled << number.exponent
    else:
        whole, rest = divmod(scaled, 1 << -number.exponent)
        half = 1 << (-number.exponent - 1)
        whole += rest > half or (rest == half and whole % 2 == 1)
    text = str(whole).rjust(places + 1, "0")
    return f"{text[:-places]}.{text[-places:]}" if places else text


def _general(number: Number, precision: int | None, mark: str) -> str:
    """Plain unless the exponent is below -4 or not below the precision (6 when as many digits as needed are shown)."""
    if number.is_zero:
        return "0"
    digits, point = _digits(number, precision if precision else (1 if precision == 0 else None))
    limit = 6 if precision is None else max(1, precision)
    if precision is not None and limit > len(digits) >= point:
        limit = len(digits)
    if point - 1 < -4 or point - 1 >= limit:
        return _exponential(digits, point, mark)
    if point <= 0:
        return "0." + "0" * -point + digits
    if len(digits) <= point:
        return digits.ljust(point, "0")
    return f"{digits[:point]}.{digits[point:]}"


def _exponential(digits: str, point: int, mark: str) -> str:
    exponent = point - 1
    fraction = f".{digits[1:]}" if len(digits) > 1 else ""
    return f"{digits[0]}{fraction}{mark}{'-' if exponent < 0 else '+'}{abs(exponent):02}"


def _digits(number: Number, count: int | None) -> tuple[str, int]:
    """Digits and p: 0.digits times ten to the p; so many of them at most, or as many as tell the number apart."""
    if number.is_zero:
        return "0", 1
    whole, _, fraction = number.text().lstrip("-").partition(".")
    digits, point = whole + fraction, len(whole)
    stripped = digits.lstrip("0")
    digits, point = stripped, point - (len(digits) - len(stripped))
    if count is None or len(digits) <= count:
        return digits.rstrip("0"), point
    rounded = numbers.parse(f"0.{digits}")
    assert rounded is not None
    text = _fixed(rounded, count)
    if text.startswith("1"):
        return "1", point + 1
    return text[2:].rstrip("0") or "0", point


def _signed(verb: _Verb, negative: bool, text: str) -> str:
    sign = "-" if negative else "+" if "+" in verb.flags else " " if " " in verb.flags else ""
    missing = _width(verb) - len(sign) - len(text)
    if "0" in verb.flags and "-" not in verb.flags and missing > 0:
        return sign + "0" * missing + text
    return _padded(verb, sign + text)


def _padded(verb: _Verb, text: str) -> str:
    missing = _width(verb) - count_graphemes(text)
    if missing <= 0:
        return text
    if "-" in verb.flags:
        return text + " " * missing
    return " " * missing + text


def _width(verb: _Verb) -> int:
    if verb.width > MAX_STRING_CHARS:
        raise too_much("formatting would make the text too long")
    return verb.width

"""Functions of numbers."""

from __future__ import annotations

import math

from fedsched.jobspec import numbers
from fedsched.jobspec.context import ArgumentFailed, FunctionFailed
from fedsched.jobspec.functions.registry import function, whole
from fedsched.jobspec.limits import MAX_NUMBER_DIGITS
from fedsched.jobspec.types import ANY, NUMBER, Kind, list_of
from fedsched.jobspec.values import Value, number

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"


@function("abs", takes=(("num", NUMBER),))
def absolute(num: Value) -> Value:
    return number(num.number.negate()) if num.number.negative else num


@function("ceil", takes=(("num", NUMBER),))
def ceil(num: Value) -> Value:
    if num.number.infinite:
        return num
    part = num.number.truncated()
    return number(part if num.number.is_integer or num.number.negative else part + 1)


@function("floor", takes=(("num", NUMBER),))
def floor(num: Value) -> Value:
    if num.number.infinite:
        return num
    part = num.number.truncated()
    return number(part - 1 if num.number.negative and not num.number.is_integer else part)


@function("log", takes=(("num", NUMBER), ("base", NUMBER)))
def log(num: Value, base: Value) -> Value:
    top, bottom = _logarithm(num), _logarithm(base)
    if bottom == 0:
        if top == 0:
            raise FunctionFailed("the logarithm of 1 to the base 1 has no value")
        return number(math.copysign(math.inf, top))
    return number(top / bottom)


@function("pow", takes=(("num", NUMBER), ("power", NUMBER)))
def power(num: Value, power: Value) -> Value:
    base, exponent = num.number.to_float(), power.number.to_float()
    try:
        return number(math.pow(base, exponent))
    except OverflowError:
        odd = exponent.is_integer() and exponent % 2 == 1
        return number(-math.inf if base < 0 and odd else math.inf)
    except ValueError:
        if base == 0:
            return number(math.inf)
        raise FunctionFailed("a root of a negative number has no value") from None


@function("max", rest=("numbers", NUMBER))
def maximum(*values: Value) -> Value:
    return _extreme(values, 1)


@function("min", rest=("numbers", NUMBER))
def minimum(*values: Value) -> Value:
    return _extreme(values, -1)


@function("signum", takes=(("num", NUMBER),))
def signum(num: Value) -> Value:
    value = whole(num)
    return number((value > 0) - (value < 0))


@function("sum", takes=(("list", list_of(NUMBER)),))
def total(values: Value) -> Value:
    if not values.elements:
        raise FunctionFailed("there is nothing to add up")
    result = numbers.from_int(0)
    for at, value in enumerate(values.elements):
        if value.is_null:
            raise ArgumentFailed(0, f"element {at} is null")
        result = result.add(value.number)
    return number(result)


@function("parseint", takes=(("number", ANY), ("base", NUMBER)))
def parseint(text: Value, base: Value) -> Value:
    if text.kind is not Kind.STRING:
        raise ArgumentFailed(0, f"a string is needed, not a {text.type}")
    radix = base.number.to_int()
    if radix is None or not 2 <= radix <= 62:
        raise ArgumentFailed(1, "the base is a whole number from 2 to 62")
    raw = text.text
    digits = raw[1:] if raw[:1] in ("+", "-") else raw
    if len(digits) > MAX_NUMBER_DIGITS:
        raise ArgumentFailed(0, f"a number may have {MAX_NUMBER_DIGITS} digits")
    result = 0
    for char in digits.lower() if radix <= 36 else digits:
        worth = _DIGITS.find(char)
        if not 0 <= worth < radix:
            digits = ""
            break
        result = result * radix + worth
    if not digits:
        raise ArgumentFailed(0, f"{raw[:40]!r} is no integer of base {radix}")
    if result.bit_length() > 4 * MAX_NUMBER_DIGITS:
        raise ArgumentFailed(0, "the number is too large")
    return number(-result if raw[0] == "-" else result)


def _logarithm(value: Value) -> float:
    found = value.number.to_float()
    if found < 0:
        raise FunctionFailed("a negative number has no logarithm")
    return -math.inf if found == 0 else math.log(found)


def _extreme(values: tuple[Value, ...], sign: int) -> Value:
    if not values:
        raise FunctionFailed("at least one number is needed")
    best = values[0]
    for value in values[1:]:
        if value.number.compare(best.number) == sign:
            best = value
    return best

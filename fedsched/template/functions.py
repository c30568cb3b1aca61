"""The functions of templates that need nothing but their arguments.

Each takes the budget first. Order of arguments is as job authors know it: the value that a pipeline brings is the last
one. Anything wrong with an argument is a `Wrong`, which the evaluator puts a place to. No message quotes a value: it
may be a secret, and messages are shown to many.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import quote_plus

from fedsched.model.patterns import own_pattern, pattern_problem
from fedsched.template.errors import Wrong
from fedsched.template.values import (
    Budget,
    equal,
    less,
    list_of,
    number_of,
    printf,
    shown,
    text_of,
    type_name,
)

JSON_DEPTH_MAX: Final = 50
INT_BITS_MAX: Final = 64
DIGITS_MAX: Final = 40
PATTERN_STEPS: Final = 50
"""What compiling a pattern costs."""
MATCH_STEPS: Final = 10
"""What one replaced match costs."""
_REFERENCE: Final = re.compile(r"\$(?:\$|(\w+)|\{(\w+)\})")
_TITLE: Final = re.compile(r"(^|\s)(\S)")

Pure = Callable[..., Any]


def _eq(_: Budget, first: Any, *others: Any) -> bool:
    if not others:
        raise Wrong("eq needs something to compare with")
    return any(equal(first, other) for other in others)


def _index(_: Budget, value: Any, *keys: Any) -> Any:
    for key in keys:
        if isinstance(value, Mapping):
            value = value.get(key)
        elif isinstance(value, Sequence):
            if isinstance(key, bool) or not isinstance(key, int):
                raise Wrong(f"a list is indexed by a number, not by {type_name(key)}")
            if not 0 <= key < len(value):
                raise Wrong(f"index {key} is out of range: there are {len(value)}")
            value = value[key]
        else:
            raise Wrong(f"{type_name(value)} has no index")
    return value


def _slice(_: Budget, value: Any, start: Any = 0, stop: Any = None) -> Any:
    if not isinstance(value, Sequence):
        raise Wrong(f"{type_name(value)} cannot be sliced")
    stop = len(value) if stop is None else stop
    if not (isinstance(start, int) and isinstance(stop, int) and 0 <= start <= stop <= len(value)):
        raise Wrong(f"there is no piece from {shown(start)} to {shown(stop)} of {len(value)}")
    return value[start:stop]


def _len(_: Budget, value: Any) -> int:
    if not isinstance(value, Sequence | Mapping):
        raise Wrong(f"{type_name(value)} has no length")
    return len(value.encode()) if isinstance(value, str) else len(value)


def _printed(budget: Budget, values: Sequence[Any], between: str) -> str:
    parts: list[str] = []
    size = 0
    for value in values:
        parts.append(shown(value))
        size += len(parts[-1]) + 1
        budget.check_growth(size)
    return between.join(parts)


def _join(budget: Budget, by: Any, values: Any) -> str:
    parts = [shown(one) for one in list_of(values, "what is joined")]
    separator = text_of(by, "the separator")
    budget.check_growth(sum(map(len, parts)) + len(separator) * len(parts))
    return separator.join(parts)


def _split(budget: Budget, by: Any, value: Any) -> list[str]:
    text, separator = text_of(value), text_of(by, "the separator")
    budget.step(text.count(separator) + len(text) // 64)
    if not text:
        return []
    return list(text) if not separator else text.split(separator)


def _replace_all(budget: Budget, old: Any, new: Any, value: Any) -> str:
    before, after, text = text_of(old), text_of(new), text_of(value)
    budget.check_growth(len(text) + text.count(before) * max(0, len(after) - len(before)))
    return text.replace(before, after)


def _regex_match(budget: Budget, pattern: Any, value: Any) -> bool:
    return _pattern(budget, pattern, value).search(text_of(value)) is not None


def _regex_replace_all(budget: Budget, pattern: Any, new: Any, value: Any) -> str:
    compiled = _pattern(budget, pattern, value)
    form, text = text_of(new), text_of(value)
    out: list[str] = []
    at, size = 0, 0
    for match in compiled.finditer(text):
        budget.step(MATCH_STEPS)
        expanded = _REFERENCE.sub(partial(_group, match), form)
        out += [text[at : match.start()], expanded]
        size += len(out[-1]) + len(out[-2])
        budget.check_growth(size)
        at = match.end()
    return "".join([*out, text[at:]])


def _group(match: Any, reference: re.Match[str]) -> str:
    name = reference[1] or reference[2]
    if name is None:
        return "$"
    try:
        return match.group(int(name) if name.isdecimal() else name) or ""
    except (IndexError, KeyError):
        return ""


def _pattern(budget: Budget, pattern: Any, value: Any) -> Any:
    problem = pattern_problem(text_of(pattern, "the pattern"))
    if problem is not None:
        raise Wrong("it is not a pattern", hint="patterns are RE2's: no look-around, no references")
    budget.step(PATTERN_STEPS + len(text_of(value)) // 64)
    return own_pattern(pattern)


def _indent(budget: Budget, by: Any, value: Any) -> str:
    value = text_of(value)
    if isinstance(by, bool) or not isinstance(by, int) or not 0 <= by <= 1000:
        raise Wrong("it takes a number of spaces from 0 to 1000")
    lines = value.split("\n")
    budget.check_growth(len(value) + by * len(lines))
    return "\n".join(" " * by + line for line in lines)


def _parse_json(budget: Budget, value: Any) -> Any:
    text = text_of(value)
    budget.step(1 + len(text) // 16)
    if not text:
        return {}
    if _json_depth(text) > JSON_DEPTH_MAX:
        raise Wrong(f"JSON nested deeper than {JSON_DEPTH_MAX}", is_limit=True)
    try:
        return json.loads(text, parse_int=_bounded_int)
    except _LongNumber as error:
        raise Wrong(str(error)) from None
    except json.JSONDecodeError as error:
        raise Wrong(f"not JSON, at line {error.lineno} column {error.colno}") from None


def _json_depth(text: str) -> int:
    """An upper bound of how deep it is nested, brackets inside texts counted too."""
    depth = deepest = 0
    for char in re.findall(r"[\[\]{}]", text):
        depth += 1 if char in "[{" else -1
        deepest = max(deepest, depth)
    return deepest


class _LongNumber(Exception):
    """A number in JSON that no program means."""


def _bounded_int(text: str) -> int:
    if len(text) > DIGITS_MAX:
        raise _LongNumber(f"JSON with a number of {len(text)} digits")
    return int(text)


def _to_json(budget: Budget, value: Any) -> str:
    return _dumped(budget, value, None)


def _to_json_pretty(budget: Budget, value: Any) -> str:
    return _dumped(budget, value, 2)


def _dumped(budget: Budget, value: Any, indent: int | None) -> str:
    text = json.dumps(
        _plain(budget, value, 0),
        indent=indent,
        ensure_ascii=False,
        sort_keys=True,
        separators=None if indent else (",", ":"),
    )
    budget.check_growth(len(text))
    return text


def _plain(budget: Budget, value: Any, depth: int) -> Any:
    budget.step()
    if depth > JSON_DEPTH_MAX:
        raise Wrong(f"a value nested deeper than {JSON_DEPTH_MAX}", is_limit=True)
    if isinstance(value, Mapping):
        return {str(key): _plain(budget, item, depth + 1) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(budget, item, depth + 1) for item in value]
    return str(value) if isinstance(value, str) else value


def _decoded(decode: Callable[[bytes], bytes]) -> Pure:
    def function(budget: Budget, value: Any) -> str:
        text = text_of(value)
        budget.step(1 + len(text) // 256)
        try:
            return decode(text.encode("ascii")).decode()
        except (UnicodeError, binascii.Error):
            raise Wrong("it does not decode to text") from None

    return function


def _digest(kind: str) -> Pure:
    def function(budget: Budget, value: Any) -> str:
        budget.step(1 + len(text_of(value)) // 256)
        return hashlib.new(kind, text_of(value).encode(), usedforsecurity=False).hexdigest()

    return function


def _hmac_sha256(budget: Budget, value: Any, key: Any) -> str:
    budget.step(1 + len(text_of(value)) // 256)
    return hmac.new(text_of(key).encode(), text_of(value).encode(), "sha256").hexdigest()


def _parse_int(_: Budget, value: Any) -> int:
    try:
        number = int(text_of(value)[:40])
    except ValueError:
        raise Wrong("the text is not a whole number") from None
    if number.bit_length() >= INT_BITS_MAX:
        raise Wrong(f"the number does not fit into {INT_BITS_MAX} bits")
    return number


def _parse_float(_: Budget, value: Any) -> float:
    try:
        return float(text_of(value)[:400])
    except ValueError:
        raise Wrong("the text is not a number") from None


def _parse_bool(_: Budget, value: Any) -> bool:
    known = {**dict.fromkeys(("1", "t", "T", "true", "TRUE", "True"), True)}
    known |= dict.fromkeys(("0", "f", "F", "false", "FALSE", "False", ""), False)
    found = known.get(text_of(value))
    if found is None:
        raise Wrong("the text is neither true nor false")
    return found


def _arithmetic(name: str, work: Callable[[Any, Any], Any]) -> Pure:
    """`subtract 5 $x` is x less 5: what a pipeline brings is what is worked on."""

    def function(_: Budget, second: Any, first: Any) -> int | float:
        try:
            result = work(number_of(first), number_of(second))
        except ZeroDivisionError:
            raise Wrong(f"{name}: division by zero") from None
        except OverflowError:
            raise Wrong(f"{name}: the result is too large") from None
        if isinstance(result, int) and result.bit_length() >= INT_BITS_MAX:
            raise Wrong(f"{name}: the result does not fit into {INT_BITS_MAX} bits")
        return float(result) if isinstance(result, float) else int(result)

    return function


def _divide(first: Any, second: Any) -> Any:
    if isinstance(first, int) and isinstance(second, int):
        quotient = abs(first) // abs(second)
        return quotient if (first < 0) == (second < 0) else -quotient
    return first / second


def _loop(budget: Budget, first: Any, last: Any = None) -> list[int]:
    start, stop = (0, first) if last is None else (first, last)
    start, stop = int(number_of(start)), int(number_of(stop))
    budget.step(max(0, stop - start))
    return list(range(start, stop))


def _contains(_: Budget, item: Any, values: Any) -> bool:
    if isinstance(values, Mapping):
        return item in values
    return any(type_name(one) == type_name(item) and equal(one, item) for one in list_of(values, "what is looked into"))


def _in(budget: Budget, values: Any, item: Any) -> bool:
    if isinstance(values, str):
        return text_of(item) in values
    return _contains(budget, item, values)


def _contains_of(quantity: Callable[[Any], bool], *, is_not: bool = False) -> Pure:
    def function(budget: Budget, wanted: Any, values: Any) -> bool:
        known = list_of(values, "what is looked into")
        budget.step(len(known))
        found = quantity(_contains(budget, one, known) for one in list_of(wanted, "what is looked for"))
        return not found if is_not else found

    return function


def _by_tag(budget: Budget, services: Any) -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for service in list_of(services, "what is grouped"):
        for tag in service.get("Tags", ()) if isinstance(service, Mapping) else ():
            budget.step()
            found.setdefault(tag, []).append(service)
    return found


def _merge_map(budget: Budget, others: Any, first: Any) -> dict[Any, Any]:
    if not isinstance(first, Mapping) or not isinstance(others, Mapping):
        raise Wrong("mergeMap wants two maps")
    budget.step(len(first) + len(others))
    return {**others, **first}


def _title(_: Budget, value: Any) -> str:
    return _TITLE.sub(lambda match: match[1] + match[2].upper(), text_of(value))


def _text(change: Callable[[str], str]) -> Pure:
    def function(budget: Budget, value: Any) -> str:
        budget.step(1 + len(text_of(value)) // 1024)
        return change(text_of(value))

    return function


FUNCTIONS: Final[Mapping[str, Pure]] = {
    "add": _arithmetic("add", lambda first, second: first + second),
    "base64Decode": _decoded(lambda data: base64.b64decode(data, validate=True)),
    "base64Encode": _text(lambda text: base64.b64encode(text.encode()).decode()),
    "base64URLDecode": _decoded(base64.urlsafe_b64decode),
    "base64URLEncode": _text(lambda text: base64.urlsafe_b64encode(text.encode()).decode()),
    "byTag": _by_tag,
    "contains": _contains,
    "containsAll": _contains_of(all),
    "containsAny": _contains_of(any),
    "containsNone": _contains_of(any, is_not=True),
    "containsNotAll": _contains_of(all, is_not=True),
    "divide": _arithmetic("divide", _divide),
    "eq": _eq,
    "ge": lambda _, first, second: not less(first, second),
    "gt": lambda _, first, second: less(second, first),
    "hmacSHA256Hex": _hmac_sha256,
    "in": _in,
    "indent": _indent,
    "index": _index,
    "join": _join,
    "le": lambda _, first, second: not less(second, first),
    "len": _len,
    "loop": _loop,
    "lt": lambda _, first, second: less(first, second),
    "maximum": _arithmetic("maximum", max),
    "md5sum": _digest("md5"),
    "mergeMap": _merge_map,
    "minimum": _arithmetic("minimum", min),
    "modulo": _arithmetic("modulo", lambda first, second: first - second * _divide(first, second)),
    "multiply": _arithmetic("multiply", lambda first, second: first * second),
    "ne": lambda _, first, second: not equal(first, second),
    "not": lambda _, value: not value,
    "parseBool": _parse_bool,
    "parseFloat": _parse_float,
    "parseInt": _parse_int,
    "parseJSON": _parse_json,
    "parseUint": _parse_int,
    "print": lambda budget, *values: _printed(budget, values, ""),
    "printf": lambda budget, form, *values: printf(budget, text_of(form, "the form"), *values),
    "println": lambda budget, *values: _printed(budget, values, " ") + "\n",
    "regexMatch": _regex_match,
    "regexReplaceAll": _regex_replace_all,
    "replaceAll": _replace_all,
    "sha1sum": _digest("sha1"),
    "sha256Hex": _digest("sha256"),
    "sha256sum": _digest("sha256"),
    "slice": _slice,
    "split": _split,
    "subtract": _arithmetic("subtract", lambda first, second: first - second),
    "toJSON": _to_json,
    "toJSONPretty": _to_json_pretty,
    "toLower": _text(str.lower),
    "toTitle": _title,
    "toUpper": _text(str.upper),
    "trim": lambda _, cutset, value: text_of(value).strip(text_of(cutset)),
    "trimPrefix": lambda _, prefix, value: text_of(value).removeprefix(text_of(prefix)),
    "trimSpace": _text(str.strip),
    "trimSuffix": lambda _, suffix, value: text_of(value).removesuffix(text_of(suffix)),
    "urlquery": _text(quote_plus),
}
"""By name. `and`, `or` and what reads data are the evaluator's own."""

"""How values look, compare and count as true, as in Go; and the budget that every step of a template pays from."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from fedsched.template.errors import Wrong

STEPS_MAX: Final = 200_000
OUTPUT_BYTES_MAX: Final = 1 << 20
VALUE_CHARS_MAX: Final = 1 << 20
"""Characters of one text, and entries of one list, that a function may make."""
MADE_CHARS_MAX: Final = 32 << 20
"""Characters and entries that all functions of one rendering may make together: a template can keep them all."""
TIME_S: Final = 5.0
LOOK_EVERY: Final = 512
"""The clock is looked at once in so many steps."""
PAD_MAX: Final = 1000
NO_VALUE: Final = "<no value>"
_VERB: Final = re.compile(r"%([-+# 0]*)(\d*)(?:\.(\d+))?([a-zA-Z%])?")


class Budget:
    """What one rendering may use. Raises `Wrong` (a limit) when it is used up."""

    def __init__(
        self,
        *,
        steps: int = STEPS_MAX,
        output_bytes: int = OUTPUT_BYTES_MAX,
        value_chars: int = VALUE_CHARS_MAX,
        time_s: float = TIME_S,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self.steps = steps
        self.output_bytes = output_bytes
        self.value_chars = value_chars
        self._left = steps
        self._clock = clock
        self._until = clock() + time_s if clock is not None else 0.0
        self._time_s = time_s
        self._written = 0
        self._made = 0

    def step(self, count: int = 1) -> None:
        before = self._left
        self._left -= count
        if self._left < 0:
            raise Wrong(f"it takes more than {self.steps} steps", is_limit=True)
        if self._clock is not None and before // LOOK_EVERY != self._left // LOOK_EVERY and self._clock() > self._until:
            raise Wrong(f"it takes longer than {self._time_s:g} s", is_limit=True)

    def write(self, text: str) -> None:
        self._written += len(text) if text.isascii() else len(text.encode(errors="replace"))
        if self._written > self.output_bytes:
            raise Wrong(f"it renders more than {self.output_bytes} bytes", is_limit=True)

    def check(self, value: Any) -> Any:
        """Refuse a value that is larger than any may be."""
        if isinstance(value, str | list | dict):
            self._made += len(value)
            if len(value) > self.value_chars:
                raise Wrong(f"a value of {len(value)} characters or entries", is_limit=True)
            if self._made > MADE_CHARS_MAX:
                raise Wrong(f"its values take more than {MADE_CHARS_MAX} characters in all", is_limit=True)
        return value

    def check_growth(self, chars: int) -> None:
        """Refuse to make a text of so many characters."""
        if chars > self.value_chars:
            raise Wrong(f"a value of {chars} characters", is_limit=True)


def shown(value: Any) -> str:
    """A value as it is written into the output."""
    match value:
        case None:
            return NO_VALUE
        case bool():
            return "true" if value else "false"
        case str():
            return str(value)
        case float():
            return _float(value)
        case Mapping():
            return f"map[{' '.join(f'{key}:{shown(item)}' for key, item in sorted(value.items(), key=_key))}]"
        case Sequence():
            return f"[{' '.join(map(shown, value))}]"
        case _:
            return str(value)


def is_true(value: Any) -> bool:
    return bool(value)


def equal(first: Any, second: Any) -> bool:
    if first is None or second is None:
        return first is None and second is None
    return (
        bool(_comparable(first) == _comparable(second)) if _kind(first) == _kind(second) else _mismatch(first, second)
    )


def less(first: Any, second: Any) -> bool:
    if _kind(first) != _kind(second) or _kind(first) not in ("number", "text"):
        _mismatch(first, second)
    return bool(first < second)


def type_name(value: Any) -> str:
    names: tuple[tuple[Any, str], ...] = (
        (bool, "bool"),
        (int, "int"),
        (float, "float64"),
        (str, "string"),
        (Mapping, "map"),
        (Sequence, "list"),
    )
    if value is None:
        return "nil"
    return next((name for kind, name in names if isinstance(value, kind)), type(value).__name__)


def text_of(value: Any, what: str = "it") -> str:
    if not isinstance(value, str):
        raise Wrong(f"{what} must be a text, not {type_name(value)}")
    return value


def list_of(value: Any, what: str = "it") -> list[Any]:
    if isinstance(value, str | Mapping) or not isinstance(value, Sequence):
        raise Wrong(f"{what} must be a list, not {type_name(value)}")
    return list(value)


def number_of(value: Any) -> int | float:
    if isinstance(value, str):
        try:
            return float(value) if any(char in value for char in ".eE") else int(value[:40])
        except ValueError:
            raise Wrong("the text is not a number") from None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Wrong(f"{type_name(value)} is not a number")
    return value


def printf(budget: Budget, form: str, *values: Any) -> str:
    """Go's verbs, as far as templates use them; what does not fit shows up in the text, as it does there."""
    left = list(values)
    out: list[str] = []
    at, size = 0, 0
    for match in _VERB.finditer(form):
        out.append(form[at : match.start()])
        at = match.end()
        out.append(_one_verb(match, left))
        size += len(out[-1]) + len(out[-2])
        budget.check_growth(size)
    out.append(form[at:])
    if left:
        extra = ", ".join(f"{type_name(value)}={shown(value)}" for value in left)
        out.append(f"%!(EXTRA {extra})")
    return "".join(out)


def _one_verb(match: re.Match[str], left: list[Any]) -> str:
    flags, width, precision, verb = match.groups()
    if verb == "%":
        return "%"
    if not verb:
        return "%!(NOVERB)"
    if not left:
        return f"%!{verb}(MISSING)"
    text = _formatted(left.pop(0), verb, flags, min(int(precision[:4]), PAD_MAX) if precision else None)
    pad = min(int(width[:5]), PAD_MAX) if width else 0
    if "-" in flags:
        return text.ljust(pad)
    if "0" in flags and verb in "dxXfeg":
        return text.zfill(pad)
    return text.rjust(pad)


def _formatted(value: Any, verb: str, flags: str, precision: int | None) -> str:
    plus = "+" if "+" in flags and isinstance(value, int | float) and value >= 0 else ""
    match verb:
        case "v" | "s" if verb == "v" or isinstance(value, str | Sequence | Mapping):
            text = shown(value)
            return plus + (text[:precision] if precision is not None and verb == "s" else text)
        case "q" if isinstance(value, str):
            return json.dumps(value, ensure_ascii=False)
        case "T":
            return type_name(value)
        case "t" if isinstance(value, bool):
            return shown(value)
        case "d" if isinstance(value, int) and not isinstance(value, bool):
            return plus + str(value)
        case "c" | "U" if isinstance(value, int) and 0 <= value < 0x110000:
            return chr(value) if verb == "c" else f"U+{value:04X}"
        case "x" | "X" if isinstance(value, int | str) and not isinstance(value, bool):
            text = f"{value:x}" if isinstance(value, int) else value.encode().hex()
            return text.upper() if verb == "X" else text
        case "f" | "e" | "g" if isinstance(value, int | float) and not isinstance(value, bool):
            if verb == "g" and precision is None:
                return plus + _float(float(value))
            return plus + f"{float(value):.{6 if precision is None else precision}{verb}}"
    return f"%!{verb}({type_name(value)}={shown(value)})"


def _float(value: float) -> str:
    if value.is_integer() and abs(value) < 1e21:
        return str(int(value))
    return repr(value)


def _key(item: tuple[Any, Any]) -> str:
    return str(item[0])


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, int | float):
        return "number"
    return "text" if isinstance(value, str) else type_name(value)


def _comparable(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _mismatch(first: Any, second: Any) -> bool:
    raise Wrong(
        f"{type_name(first)} and {type_name(second)} cannot be compared",
        hint="parseInt, parseBool and printf make one of the other",
    )

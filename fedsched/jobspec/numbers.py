"""Numbers as the job language has them: binary floating point with 512 bits, exact for every integer in sight.

Decimal text is rounded to the nearest such number (ties to even) and printed with as few digits as tell it apart from
its neighbours, so 0.1 + 0.2 is 0.3 and one third has 155 digits. Some functions count in machine integers (64 bits) or
machine floats (53 bits); their results keep that precision, as do sums of nothing else. Infinities exist, "not a
number" does not: what would be one is an error.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from fedsched.jobspec.limits import MAX_NUMBER_DIGITS, MAX_NUMBER_EXPONENT

PRECISION = 512
_MACHINE_INTEGER = 64
_MACHINE_FLOAT = 53
_MAX_BINARY_EXPONENT = 4 * MAX_NUMBER_EXPONENT

_DECIMAL = re.compile(r"([+-]?)(\d+)(?:\.(\d*))?(?:[eE]([+-]?\d+))?|([+-]?)\.(\d+)(?:[eE]([+-]?\d+))?", re.ASCII)


class NumberProblem(Exception):
    """An operation without a result; the text says why."""


@dataclass(frozen=True, slots=True)
class Number:
    """`mantissa * 2**exponent`, negated if `negative`; the mantissa is odd or zero. Zero keeps its sign."""

    negative: bool
    mantissa: int
    exponent: int
    precision: int = PRECISION
    infinite: bool = False

    @property
    def is_zero(self) -> bool:
        return self.mantissa == 0 and not self.infinite

    @property
    def is_integer(self) -> bool:
        return not self.infinite and self.exponent >= 0

    @property
    def scaled(self) -> int:
        """The mantissa with its sign."""
        return -self.mantissa if self.negative else self.mantissa

    def to_int(self) -> int | None:
        """The exact integer, or None if it is none."""
        return self.scaled << self.exponent if self.is_integer else None

    def to_float(self) -> float:
        """The nearest machine float; out of its range an infinity."""
        sign = -1.0 if self.negative else 1.0
        if self.infinite:
            return sign * math.inf
        try:
            if self.exponent >= 0:
                return sign * float(self.mantissa << self.exponent)
            return sign * (self.mantissa / (1 << -self.exponent))
        except OverflowError:
            return sign * math.inf

    def truncated(self) -> int:
        """The integer part; of an infinity there is none."""
        if self.infinite:
            raise NumberProblem("an infinity has no integer part")
        if self.exponent >= 0:
            return self.scaled << self.exponent
        part = self.mantissa >> -self.exponent
        return -part if self.negative else part

    def compare(self, other: Number) -> int:
        """-1, 0 or 1."""
        if self.infinite or other.infinite:
            mine, theirs = self._infinity_rank(), other._infinity_rank()
            return (mine > theirs) - (mine < theirs)
        low = min(self.exponent, other.exponent)
        left, right = self.scaled << (self.exponent - low), other.scaled << (other.exponent - low)
        return (left > right) - (left < right)

    def negate(self) -> Number:
        return Number(not self.negative, self.mantissa, self.exponent, self.precision, self.infinite)

    def add(self, other: Number) -> Number:
        precision = max(self.precision, other.precision)
        if self.infinite or other.infinite:
            if self.infinite and other.infinite and self.negative != other.negative:
                raise NumberProblem("infinity minus infinity has no value")
            return self if self.infinite else other
        if self.is_zero and other.is_zero:
            return Number(self.negative and other.negative, 0, 0, precision)
        low = min(self.exponent, other.exponent)
        total = (self.scaled << (self.exponent - low)) + (other.scaled << (other.exponent - low))
        return _rounded(total < 0, abs(total), low, precision)

    def subtract(self, other: Number) -> Number:
        return self.add(other.negate())

    def multiply(self, other: Number) -> Number:
        negative = self.negative != other.negative
        precision = max(self.precision, other.precision)
        if self.infinite or other.infinite:
            if self.is_zero or other.is_zero:
                raise NumberProblem("zero times infinity has no value")
            return Number(negative, 0, 0, precision, infinite=True)
        product = _rounded(negative, self.mantissa * other.mantissa, self.exponent + other.exponent, PRECISION)
        needed = max(precision, product.mantissa.bit_length())
        return Number(product.negative, product.mantissa, product.exponent, needed)

    def divide(self, other: Number) -> Number:
        negative = self.negative != other.negative
        precision = max(self.precision, other.precision)
        if (self.is_zero and other.is_zero) or (self.infinite and other.infinite):
            raise NumberProblem("zero divided by zero (or infinity by infinity) has no value")
        if self.infinite or other.is_zero:
            return Number(negative, 0, 0, precision, infinite=True)
        if other.infinite or self.is_zero:
            return Number(negative, 0, 0, precision)
        return _quotient(negative, self.mantissa, other.mantissa, self.exponent - other.exponent, precision)

    def modulo(self, other: Number) -> Number:
        """What is left after taking `other` as often as fits, counted towards zero; by zero nothing is taken."""
        if self.infinite or other.infinite:
            raise NumberProblem("the remainder of an infinity has no value")
        if other.is_zero:
            return self
        whole = from_int(self.divide(other).truncated())
        taken = _rounded(
            whole.negative != other.negative,
            whole.mantissa * other.mantissa,
            whole.exponent + other.exponent,
            max(self.precision, other.precision),
        )
        return self.subtract(taken)

    def text(self) -> str:
        """Decimal, never with an exponent, as short as tells this number from its neighbours."""
        sign = "-" if self.negative else ""
        if self.infinite:
            return "-Inf" if self.negative else "+Inf"
        if self.mantissa == 0:
            return sign + "0"
        if self.exponent >= 0 and self.mantissa.bit_length() + self.exponent <= self.precision:
            return f"{sign}{self.mantissa << self.exponent}"
        digits, point = self._shortest()
        if point <= 0:
            return f"{sign}0.{'0' * -point}{digits}"
        if len(digits) <= point:
            return f"{sign}{digits}{'0' * (point - len(digits))}"
        return f"{sign}{digits[:point]}.{digits[point:]}"

    def _infinity_rank(self) -> int:
        return 0 if not self.infinite else (-1 if self.negative else 1)

    def _shortest(self) -> tuple[str, int]:
        """Digits d1d2... and p so that 0.d1d2... times ten to the p lies nearer to this number than to any other."""
        shift = self.precision - self.mantissa.bit_length() + 2
        value, exponent = self.mantissa << shift, self.exponent - shift
        above = 2
        below = 1 if self.mantissa == 1 else 2
        inclusive = (self.mantissa << (shift - 2)) % 2 == 0
        if exponent >= 0:
            numerator, low, high = (x << exponent for x in (value, value - below, value + above))
            denominator = 1
        else:
            numerator, low, high, denominator = value, value - below, value + above, 1 << -exponent
        point = len(str(numerator // denominator)) if numerator >= denominator else 0
        if point == 0:
            while numerator * 10 ** (1 - point) < denominator:
                point -= 1

        def rounded(count: int) -> int | None:
            """The number to so many digits, if that still tells it apart."""
            scale = count - point
            up, down = (10**scale, 1) if scale >= 0 else (1, 10**-scale)
            unit = denominator * down
            floor, rest = divmod(numerator * up, unit)
            fits_down = _inside(floor * unit, low * up, high * up, inclusive)
            fits_up = _inside((floor + 1) * unit, low * up, high * up, inclusive)
            if not fits_down and not fits_up:
                return None
            nearer_up = rest * 2 > unit or (rest * 2 == unit and floor % 2 == 1)
            return floor + 1 if fits_up and (nearer_up or not fits_down) else floor

        # more digits never fit worse, so the fewest that fit are found by halving
        fewest, most = 1, self.precision * 30103 // 100000 + 3
        while fewest < most:
            middle = (fewest + most) // 2
            if rounded(middle) is None:
                fewest = middle + 1
            else:
                most = middle
        digits = str(rounded(fewest))
        return digits.rstrip("0"), point + len(digits) - fewest


def parse(text: str, precision: int = PRECISION) -> Number | None:
    """The number that decimal text names, or None. Raises NumberProblem if it is out of bounds."""
    match = _DECIMAL.fullmatch(text)
    if match is None:
        return None
    sign, whole, fraction, power = (
        match[1] or match[5] or "",
        match[2] or "",
        match[3] or match[6] or "",
        match[4] or match[7],
    )
    if len(text) > MAX_NUMBER_DIGITS:
        raise NumberProblem(f"a number may have {MAX_NUMBER_DIGITS} digits")
    exponent = int(power or 0) - len(fraction)
    if abs(exponent) > MAX_NUMBER_EXPONENT:
        raise NumberProblem(f"a number's exponent may be {MAX_NUMBER_EXPONENT} at most")
    digits = int((whole + fraction) or "0")
    if digits == 0:
        return Number(sign == "-", 0, 0, precision)
    if exponent >= 0:
        return _rounded(sign == "-", digits * 10**exponent, 0, precision)
    return _quotient(sign == "-", digits, 10**-exponent, 0, precision)


def from_int(value: int) -> Number:
    """An integer with all its bits."""
    precision = max(_MACHINE_INTEGER, abs(value).bit_length())
    return _rounded(value < 0, abs(value), 0, precision)


def from_float(value: float) -> Number:
    """A machine float as it is; "not a number" is refused."""
    if math.isnan(value):
        raise NumberProblem("the result is not a number")
    if math.isinf(value):
        return Number(value < 0, 0, 0, _MACHINE_FLOAT, infinite=True)
    mantissa, denominator = abs(value).as_integer_ratio()
    negative = math.copysign(1.0, value) < 0
    return _rounded(negative, mantissa, 1 - denominator.bit_length(), _MACHINE_FLOAT)


def _quotient(negative: bool, numerator: int, denominator: int, exponent: int, precision: int) -> Number:
    shift = max(0, precision + 2 + denominator.bit_length() - numerator.bit_length())
    whole, rest = divmod(numerator << shift, denominator)
    # the lowest bit only says that something was left over, which is all that rounding needs to know
    return _rounded(negative, whole << 1 | (rest != 0), exponent - shift - 1, precision)


def _rounded(negative: bool, mantissa: int, exponent: int, precision: int) -> Number:
    """To so many bits, ties to even; then without trailing zero bits."""
    excess = mantissa.bit_length() - precision
    if excess > 0:
        half = 1 << (excess - 1)
        rest = mantissa & ((1 << excess) - 1)
        mantissa >>= excess
        exponent += excess
        if rest > half or (rest == half and mantissa & 1):
            mantissa += 1
    if mantissa == 0:
        return Number(negative, 0, 0, precision)
    zeros = (mantissa & -mantissa).bit_length() - 1
    mantissa, exponent = mantissa >> zeros, exponent + zeros
    if abs(exponent + mantissa.bit_length()) > _MAX_BINARY_EXPONENT:
        raise NumberProblem("the number is too large or too close to zero")
    return Number(negative, mantissa, exponent, precision)


def _inside(value: int, low: int, high: int, inclusive: bool) -> bool:
    return low <= value <= high if inclusive else low < value < high

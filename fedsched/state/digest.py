"""The state digest: equal states have equal digests, and keeping it costs per change, not per state.

Each table keeps the sum of its rows' hashes, so a changed row means one subtraction and one addition, and the order in
which rows came does not matter. Rows of small tables are hashed one by one with BLAKE2; columns are hashed a batch at a
time with integer arithmetic. Neither is meant to stop a forger: they find servers that have come to differ.

Python's own `hash` is of no use here: for text it differs from process to process.
"""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import blake2b
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

ROW_HASH_BYTES: Final = 16
ROW_HASH_MODULUS: Final = 1 << (8 * ROW_HASH_BYTES)
COLUMN_HASH_MODULUS: Final = 1 << 64

_encoder = msgspec.msgpack.Encoder()
"""Only ever hashed, never stored or sent, so this is not a second format."""


def row_hash(table: str, row: Any) -> int:
    """A number for one row of one table. Fields at their default do not count, so a new field changes nothing."""
    return int.from_bytes(
        blake2b(_encoder.encode(row.hashed()), digest_size=ROW_HASH_BYTES, person=table[:16].encode()).digest(), "big"
    )


def column_hash(words: NDArray[np.uint64], keys: NDArray[np.uint64]) -> int:
    """The sum of one hash per row; `words` has a row each, as 64-bit words, `keys` tells the rows apart.

    Each word is multiplied with an odd constant of its own and the sum is stirred, so that equal changes in two rows
    do not cancel out.
    """
    if len(words) == 1:
        return _one_hash(words[0].tolist(), int(keys[0]))
    stirred: NDArray[np.uint64] = words @ _ODD[: words.shape[1]]
    stirred += keys * _KEY_FACTOR
    stirred ^= stirred >> np.uint64(31)
    stirred *= _STIR
    stirred ^= stirred >> np.uint64(29)
    return int(stirred.sum(dtype=np.uint64))


def _one_hash(words: list[int], key: int) -> int:
    """The same for one row; ten array operations on a single number would cost more than the arithmetic."""
    stirred = sum(map(int.__mul__, words, _ODD_INTS)) + key * int(_KEY_FACTOR) & _ALL
    stirred ^= stirred >> 31
    stirred = stirred * int(_STIR) & _ALL
    return stirred ^ stirred >> 29


def combine(parts: Mapping[str, int], index: int) -> bytes:
    """One digest of all tables' digests at one index. Empty tables do not count: an older server may not know them."""
    whole = blake2b(digest_size=ROW_HASH_BYTES, person=b"fedsched-state")
    whole.update(index.to_bytes(8, "big"))
    for name in sorted(name for name, part in parts.items() if part):
        whole.update(f"{name}={parts[name]:x};".encode())
    return whole.digest()


def _odd_numbers(count: int) -> NDArray[np.uint64]:
    seed = blake2b(b"one odd factor per word", digest_size=8).digest()
    numbers = []
    for _ in range(count):
        seed = blake2b(seed, digest_size=8).digest()
        numbers.append(int.from_bytes(seed, "big") | 1)
    return np.array(numbers, dtype=np.uint64)


_ODD: Final = _odd_numbers(32)
_ODD_INTS: Final[list[int]] = _ODD.tolist()
_ALL: Final = COLUMN_HASH_MODULUS - 1
_KEY_FACTOR: Final = np.uint64(0x9E3779B97F4A7C15)
"""2**64 divided by the golden ratio: neighbouring keys land far apart."""
_STIR: Final = np.uint64(0xBF58476D1CE4E5B9)
"""From SplitMix64's finaliser."""

"""Many allocation ids out of one: a plan of a thousand must not ask for chance a thousand times."""

from __future__ import annotations

from hashlib import shake_128

import numpy as np


def fresh_ids(seed: str, count: int) -> bytes:
    """`count` ids of 16 bytes, in the form of random UUIDs; a seed that is itself random is used once."""
    ids = np.frombuffer(shake_128(seed.encode()).digest(16 * count), dtype=np.uint8).copy().reshape(count, 16)
    ids[:, 6] = (ids[:, 6] & 0x0F) | 0x40
    ids[:, 8] = (ids[:, 8] & 0x3F) | 0x80
    return ids.tobytes()

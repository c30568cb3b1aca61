"""Named random streams out of one seed.

Each purpose draws from a stream of its own, so that one more draw for the network does not shift what the disk or the
workload gets: an old seed keeps most of its meaning when the simulator grows.
"""

from __future__ import annotations

import random
from hashlib import blake2b


def stream(seed: int, name: str) -> random.Random:
    """The stream called `name` of the run with this seed; equal arguments give equal draws on every machine."""
    return random.Random(blake2b(f"{seed}/{name}".encode(), digest_size=16).digest())

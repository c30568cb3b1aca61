"""What somebody might try who has just got some regions running: said by `fedsched dev`, done by `fedsched demo`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

HELLO: Final = "fixtures/jobs/hello.json"
ROLLING: Final = "fixtures/jobs/rolling-web.hcl"
EVERYWHERE: Final = "fixtures/jobs/everywhere.hcl"
"""A job of several regions, and which they are."""
OF_EVERYWHERE: Final = frozenset({"eu", "us"})


def things_to_try(regions: Sequence[str]) -> list[str]:
    """Commands, for whoever has the first of these regions at hand."""
    if len(regions) == 1:
        return ["fedsched server members", "fedsched node status", f"fedsched job run {ROLLING}"]
    found = ["fedsched region list", f"fedsched job run -region {regions[1]} {HELLO}"]
    if set(regions) >= OF_EVERYWHERE:
        return [*found, f"fedsched job run {EVERYWHERE}"]
    return [*found, f"fedsched node status -region {regions[1]}"]

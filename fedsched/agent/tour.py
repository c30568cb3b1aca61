"""What somebody might try who has just got some regions running: said by `fedsched dev`, done by `fedsched demo`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

HELLO: Final = "fixtures/jobs/hello.json"
ROLLING: Final = "fixtures/jobs/rolling-web.hcl"


def things_to_try(regions: Sequence[str]) -> list[str]:
    """Commands, for whoever has the first of these regions at hand."""
    if len(regions) == 1:
        return ["fedsched server members", "fedsched node status", f"fedsched job run {ROLLING}"]
    there = f"-region {regions[1]}"
    return ["fedsched region list", f"fedsched node status {there}", f"fedsched job run {there} {HELLO}"]

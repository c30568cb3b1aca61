"""`python -m tests.chaos.planted BUG agent ...`: an agent that breaks its word, to show that a run would notice."""

from __future__ import annotations

import sys
from typing import Any

from fedsched.cli.main import main
from fedsched.server.dispatch import Dispatch

STALE_READS = "stale-reads"
"""Reads are answered from whatever this server has, without asking whether somebody else leads by now."""


def plant(bug: str) -> None:
    assert bug == STALE_READS, f"no such bug: {bug}"

    async def not_at_all(self: Dispatch, context: Any) -> None:
        pass

    assert hasattr(Dispatch, "_catch_up"), "what makes reads new enough has moved: plant the bug there"
    Dispatch._catch_up = not_at_all  # type: ignore[method-assign]


if __name__ == "__main__":
    plant(sys.argv.pop(1))
    sys.exit(main())

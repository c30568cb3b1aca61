"""The schedulers that come with fedsched, by job type; see `workers.enabled_schedulers` for those of others."""

from __future__ import annotations

from fedsched.scheduler.schedule import BUILT_IN

__all__ = ["BUILT_IN"]

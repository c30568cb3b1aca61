"""When to cut a snapshot, and how much log to keep behind it. Pure arithmetic: its rules can be read and tested.

A snapshot costs time in proportion to the state, a replayed log in proportion to its bytes. So one is cut when enough
entries *and* enough bytes have gathered, never more often than the state's own size in log bytes; and always before the
log, which every server holds in memory, grows past its limit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

MIB = 1024 * 1024


@dataclass(frozen=True, slots=True)
class CompactionSettings:
    """Limits in entries and bytes; the defaults suit a region of any size on a small host."""

    snapshot_entries: int = 8_192
    snapshot_bytes: int = 16 * MIB
    log_bytes_max: int = 128 * MIB
    """Cut a snapshot at once when the log holds this much, whatever else the rules say."""
    trailing_entries: int = 10_240
    """Kept behind a snapshot, so that a server that was away for a moment catches up from the log."""
    trailing_bytes_max: int = 64 * MIB


def should_snapshot(
    settings: CompactionSettings, *, entries_since: int, bytes_since: int, log_bytes: int, last_size: int
) -> bool:
    """Whether to cut a snapshot now; the counts are since the last one."""
    if entries_since <= 0:
        return False
    if log_bytes >= settings.log_bytes_max:
        return True
    return entries_since >= settings.snapshot_entries and bytes_since >= max(settings.snapshot_bytes, last_size)


def compact_to(
    settings: CompactionSettings,
    *,
    snapshot_index: int,
    first_index: int,
    log_bytes: int,
    log_entries: int,
    live_matches: Iterable[int],
) -> int:
    """The last index that may leave the log now that a snapshot holds everything up to `snapshot_index`.

    Keeps `trailing_entries` and whatever a live follower still needs, as long as that stays under
    `trailing_bytes_max` (estimated by the mean size of an entry); 0 when nothing may go.
    """
    wanted = min([snapshot_index - settings.trailing_entries, *live_matches])
    mean_bytes = max(1, log_bytes // max(1, log_entries))
    affordable = max(1, settings.trailing_bytes_max // mean_bytes)
    last_index = first_index + log_entries - 1
    wanted = max(wanted, last_index - affordable)
    wanted = min(wanted, snapshot_index)
    return wanted if wanted >= first_index else 0

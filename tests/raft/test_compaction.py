from __future__ import annotations

import pytest

from fedsched.raft.compaction import MIB, CompactionSettings, compact_to, should_snapshot

SMALL = CompactionSettings(
    snapshot_entries=100, snapshot_bytes=1_000, log_bytes_max=10_000, trailing_entries=50, trailing_bytes_max=5_000
)


@pytest.mark.parametrize(
    ("entries", "bytes_since", "log_bytes", "last_size", "due"),
    [
        (0, 0, 20_000, 0, False),  # nothing new: never
        (99, 5_000, 5_000, 0, False),  # too few entries
        (100, 999, 999, 0, False),  # too few bytes
        (100, 1_000, 1_000, 0, True),
        (100, 1_000, 1_000, 2_000, False),  # the state is larger than what a replay would cost
        (100, 2_000, 2_000, 2_000, True),
        (1, 10, 10_000, 9_999_999, True),  # the log is held in memory: its limit wins
    ],
)
def test_a_snapshot_is_due_by_entries_and_bytes_together_or_by_the_log_limit(
    entries: int, bytes_since: int, log_bytes: int, last_size: int, due: bool
) -> None:
    said = should_snapshot(
        SMALL, entries_since=entries, bytes_since=bytes_since, log_bytes=log_bytes, last_size=last_size
    )

    assert said is due


def test_compaction_keeps_the_trailing_entries() -> None:
    kept = compact_to(SMALL, snapshot_index=200, first_index=1, log_bytes=2_000, log_entries=200, live_matches=[])

    assert kept == 150


def test_compaction_keeps_what_a_live_follower_still_needs() -> None:
    kept = compact_to(
        SMALL, snapshot_index=200, first_index=1, log_bytes=2_000, log_entries=200, live_matches=[120, 199]
    )

    assert kept == 120


def test_a_slow_follower_cannot_hold_more_than_the_byte_limit() -> None:
    kept = compact_to(SMALL, snapshot_index=200, first_index=1, log_bytes=20_000, log_entries=200, live_matches=[3])

    assert kept == 150  # 5,000 bytes at 100 each


def test_nothing_newer_than_the_snapshot_ever_goes() -> None:
    kept = compact_to(SMALL, snapshot_index=100, first_index=1, log_bytes=MIB, log_entries=200, live_matches=[])

    assert kept == 100


def test_nothing_goes_when_the_log_is_shorter_than_what_is_kept() -> None:
    kept = compact_to(SMALL, snapshot_index=40, first_index=1, log_bytes=400, log_entries=40, live_matches=[])

    assert kept == 0

"""When a disk is a reason to hand leadership over."""

from __future__ import annotations

import errno

import pytest

from fedsched.raft.datadir import Space
from fedsched.raft.disk_errors import StoreFailed, failing
from fedsched.raft.disk_watch import DiskWatch
from fedsched.raft.store_thread import StoreThreadStatistics


def a_look(groups: int = 0, total_s: float = 0.0, busy_s: float = 0.0) -> StoreThreadStatistics:
    return StoreThreadStatistics(
        groups=groups,
        writes=groups,
        waiting=0,
        waiting_bytes=0,
        busy_s=busy_s,
        sync_last_s=0.0,
        sync_max_s=0.0,
        sync_total_s=total_s,
        sync_counts=(),
    )


def a_watch() -> DiskWatch:
    return DiskWatch(slow_s=0.5, patience_s=10)


def test_syncs_that_stay_slow_for_the_whole_patience_are_a_reason() -> None:
    watch = a_watch()

    verdicts = [watch.handover(now, Space.OK, a_look(now, 0.6 * now)) for now in range(1, 12)]

    assert verdicts == [*[""] * 10, "slow disk"]


def test_a_sync_that_never_returns_is_a_slow_one() -> None:
    watch = a_watch()

    assert watch.handover(0, Space.OK, a_look(busy_s=0.6)) == ""
    assert watch.handover(10, Space.OK, a_look(busy_s=10.6)) == "slow disk"


def test_after_a_handover_the_patience_begins_anew() -> None:
    watch = a_watch()
    watch.handover(0, Space.OK, a_look(busy_s=1))

    assert watch.handover(10, Space.OK, a_look(busy_s=11)) == "slow disk"
    assert watch.handover(12, Space.OK, a_look(busy_s=13)) == ""
    assert watch.handover(22, Space.OK, a_look(busy_s=23)) == "slow disk"


def test_one_fast_spell_ends_a_slow_one() -> None:
    watch = a_watch()
    watch.handover(0, Space.OK, a_look(1, 0.6))
    watch.handover(5, Space.OK, a_look(101, 0.7))

    assert watch.handover(11, Space.OK, a_look(102, 1.4)) == ""


def test_a_hiccup_before_a_quiet_time_is_no_reason() -> None:
    watch = a_watch()
    watch.handover(0, Space.OK, a_look(1, 3.0))

    assert [watch.handover(now, Space.OK, a_look(1, 3.0)) for now in range(2, 60, 2)] == [""] * 29


def test_slow_syncs_with_long_quiet_between_them_are_a_reason_at_the_next_one() -> None:
    watch = a_watch()
    watch.handover(0, Space.OK, a_look(1, 0.6))
    watch.handover(10, Space.OK, a_look(1, 0.6))

    assert watch.handover(20, Space.OK, a_look(2, 1.2)) == "slow disk"


def test_a_disk_that_is_nearly_full_is_a_reason_at_every_look() -> None:
    watch = a_watch()

    assert [watch.handover(now, Space.HARD, a_look()) for now in (0, 2)] == ["disk nearly full"] * 2
    assert watch.handover(4, Space.SOFT, a_look()) == ""


@pytest.mark.parametrize(
    ("number", "advice"),
    [(errno.ENOSPC, "make room"), (errno.EACCES, "user must be able"), (errno.EIO, "kernel's log")],
)
def test_what_the_disk_refuses_comes_with_advice(number: int, advice: str) -> None:
    with pytest.raises(StoreFailed, match=r"writing it down failed: .*why not") as failed, failing("writing it down"):
        raise OSError(number, "why not")

    assert advice in failed.value.hint

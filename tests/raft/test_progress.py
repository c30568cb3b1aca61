from __future__ import annotations

from fedsched.raft.messages import SnapshotMeta
from fedsched.raft.progress import Mode, Progress
from tests.raft.region import a_config


def test_a_new_follower_is_probed() -> None:
    progress = Progress("2", 8, now=3)

    assert (progress.mode, progress.match, progress.next, progress.last_contact) == (Mode.PROBE, 0, 8, 3)


def test_acknowledgements_move_forward_only_and_make_room() -> None:
    progress = Progress("2", 1, now=0)
    progress.replicate()
    progress.sent(3, 100)
    progress.sent(6, 200)
    assert not progress.has_room(2, 1_000)
    assert not progress.has_room(9, 300)

    assert progress.acknowledged(3)
    assert not progress.acknowledged(2)

    assert (progress.match, progress.next, progress.inflight, progress.inflight_bytes) == (3, 7, 1, 200)
    assert progress.has_room(2, 1_000)


def test_an_acknowledgement_beyond_what_was_sent_moves_next_along() -> None:
    progress = Progress("2", 1, now=0)

    assert progress.acknowledged(9)
    assert progress.next == 10


def test_probing_again_starts_at_what_is_certain() -> None:
    progress = Progress("2", 1, now=0)
    progress.acknowledged(4)
    progress.replicate()
    progress.sent(9, 50)

    progress.probe()

    assert (progress.mode, progress.next, progress.inflight, progress.inflight_bytes) == (Mode.PROBE, 5, 0, 0)


def test_an_offer_is_remembered_until_the_mode_changes() -> None:
    progress = Progress("2", 1, now=0)
    meta = SnapshotMeta("s", 9, 2, a_config("12"), 1)
    progress.offer(meta, now=7)
    assert (progress.mode, progress.offered, progress.offered_at) == (Mode.SNAPSHOT, meta, 7)

    progress.probe_from(10)

    assert (progress.mode, progress.offered, progress.next) == (Mode.PROBE, None, 10)


def test_contact_is_noted() -> None:
    progress = Progress("2", 1, now=0)
    progress.is_active = False

    progress.heard(12)

    assert progress.is_active
    assert progress.last_contact == 12

"""The score of the own health."""

from __future__ import annotations

from fedsched.gossip.awareness import Awareness


def test_the_score_stays_within_its_bounds_and_stretches_the_interval() -> None:
    awareness = Awareness(8)

    awareness.change(-1)
    assert awareness.stretched(1.0) == 1.0
    awareness.change(+3)
    assert awareness.stretched(1.0) == 4.0
    awareness.change(+30)
    assert awareness.score == 7


def test_lag_counts_once_per_interval() -> None:
    awareness = Awareness(8)

    for now in (10.0, 10.1, 10.2, 11.5):
        awareness.note_lag(now, 1.0)

    assert awareness.score == 2
    assert awareness.lagged_at == 11.5

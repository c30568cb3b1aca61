"""A server that is behind lets more news gather; one that is not passes them on at once."""

from __future__ import annotations

import pytest

from fedsched.server.pace import (
    CLIENTS_BEHIND_MS,
    CLIENTS_FAR_BEHIND_MS,
    CLIENTS_MS,
    FRAMES_PER_S,
    LONGEST_S,
    SHORTEST_S,
    SOON_S,
    Pace,
)


def test_news_after_a_quiet_time_go_out_at_once_and_others_wait_for_company() -> None:
    pace = Pace()
    assert pace.due_at(-1.0, 5.0) == 5.0 + SOON_S
    assert pace.due_at(5.0, 5.001) == 5.0 + SHORTEST_S


def test_the_window_grows_while_late_and_shrinks_when_not() -> None:
    pace = Pace()
    windows = []
    for late_s in [0.4] * 20 + [0.0] * 40:
        pace.woke(late_s)
        windows.append(pace.window_s)
    assert windows[:20] == sorted(windows[:20])
    assert windows[19] == LONGEST_S
    assert windows[20:] == sorted(windows[20:], reverse=True)
    assert windows[-1] == SHORTEST_S


@pytest.mark.parametrize(("frames", "window_s"), [(1, SHORTEST_S), (FRAMES_PER_S // 2, 0.5), (9_999, LONGEST_S)])
def test_the_more_frames_there_were_the_longer_the_next_ones_gather(frames: int, window_s: float) -> None:
    pace = Pace()
    pace.woke(0.0, frames=frames)
    assert pace.window_s == window_s
    pace.woke(0.0, frames=1)
    assert pace.window_s == SHORTEST_S


def test_clients_are_asked_to_gather_longer_while_the_server_is_behind() -> None:
    pace = Pace()
    assert (pace.is_behind, pace.clients_ms) == (False, CLIENTS_MS)
    pace.woke(0.5)
    assert (pace.is_behind, pace.clients_ms) == (True, CLIENTS_BEHIND_MS)
    pace.woke(1.0)
    assert (pace.is_behind, pace.clients_ms) == (True, CLIENTS_FAR_BEHIND_MS)
    for _ in range(20):
        pace.woke(0.001)
    assert (pace.is_behind, pace.clients_ms) == (False, CLIENTS_MS)


def test_the_window_grows_as_well_while_clients_do_not_read() -> None:
    pace = Pace()
    while not pace.is_behind:
        pace.woke(0.0, is_stuck=True)
    for _ in range(20):
        pace.woke(0.0)
    assert pace.window_s == SHORTEST_S

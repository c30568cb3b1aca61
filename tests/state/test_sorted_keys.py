from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fedsched.state import sorted_keys
from fedsched.state.sorted_keys import SortedKeys


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 60))), st.integers(-1, 61), st.integers(0, 9), st.booleans())
def test_pages_are_those_of_a_sorted_list(steps: list[tuple[bool, int]], start: int, limit: int, after: bool) -> None:
    keys: SortedKeys[int] = SortedKeys()
    known: set[int] = set()
    for is_added, key in steps:
        if is_added and key not in known:
            keys.add(key)
            known.add(key)
        elif not is_added and key in known:
            keys.remove(key)
            known.remove(key)

    assert keys.page(None, 100) == sorted(known)
    wanted = [key for key in sorted(known) if (key > start if after else key >= start)]
    assert keys.page(start, limit, after=after) == wanted[:limit]
    assert keys.page(None, 100, back=True) == sorted(known, reverse=True)
    wanted = [key for key in sorted(known, reverse=True) if (key < start if after else key <= start)]
    assert keys.page(start, limit, after=after, back=True) == wanted[:limit]


def test_long_runs_are_split_and_stay_in_order() -> None:
    keys: SortedKeys[int] = SortedKeys()
    count = sorted_keys.RUN_MAX * 3
    for key in range(0, 2 * count, 2):
        keys.add(key)
    for key in range(2 * count - 1, 0, -2):
        keys.add(key)

    assert keys.page(None, 3 * count) == list(range(2 * count))
    assert keys.page(5, 4, after=True) == [6, 7, 8, 9]
    assert keys.page(1000, 900, back=True) == list(range(1000, 100, -1))
    for key in range(2 * count):
        keys.remove(key)
    assert keys.page(None, 10) == []

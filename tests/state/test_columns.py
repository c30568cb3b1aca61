from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsched.state import columns as columns_module
from fedsched.state.columns import Columns, ColumnsView, Rows, groups
from fedsched.state.past import Keeper, Lease

DTYPE = np.dtype([("used", "<u4"), ("value", "<i4"), ("next", "<i4"), ("spare", "<u4")])


def records(*values: int) -> Rows:
    rows = np.zeros(len(values), dtype=DTYPE)
    rows["used"] = 1
    rows["value"] = values
    return rows


def slots(*numbers: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(numbers, dtype=np.int64)


@pytest.fixture
def tiny_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    """Segments of 512 records, so that a test crosses their borders."""
    monkeypatch.setattr(columns_module, "SEGMENT_SHIFT", 9)
    monkeypatch.setattr(columns_module, "SEGMENT_ROWS", 1 << 9)
    monkeypatch.setattr(columns_module, "SMALL_SEGMENT_ROWS", (256, 512))


def test_the_lowest_free_slots_are_given_out_first() -> None:
    columns = Columns(Keeper(), DTYPE)
    taken = columns.claim(6)
    columns.write(taken, records(0, 1, 2, 3, 4, 5))
    columns.release(slots(4, 1))

    assert columns.claim(3).tolist() == [1, 4, 6]
    assert columns.count == 7
    assert columns.high == 7


def test_released_records_are_zero_and_no_longer_in_use() -> None:
    columns = Columns(Keeper(), DTYPE)
    columns.write(columns.claim(3), records(7, 8, 9))
    columns.release(slots(1))
    columns.release(slots())

    assert columns.in_use(0, 10).tolist() == [0, 2]
    assert columns.read(slots(1))["value"].tolist() == [0]
    assert columns.value(2, "value") == 9
    assert columns.one(2)["value"] == 9


@pytest.mark.usefixtures("tiny_segments")
def test_records_are_found_across_segments() -> None:
    columns = Columns(Keeper(), DTYPE)
    columns.write(columns.claim(200), records(*range(200)))
    columns.write(columns.claim(1800), records(*range(200, 2000)))
    wanted = slots(1999, 0, 511, 512, 1024, 5)

    assert columns.read(wanted)["value"].tolist() == wanted.tolist()
    columns.put(wanted, "value", -1)
    assert columns.read(wanted)["value"].tolist() == [-1] * 6
    columns.put(wanted, "value", np.arange(6))
    assert columns.read(wanted)["value"].tolist() == list(range(6))
    columns.release(slots(3, 700, 1300))
    assert columns.claim(4).tolist() == [3, 700, 1300, 2000]
    assert columns.nbytes() == 2001 * (DTYPE.itemsize + 1)


def test_reading_and_writing_nothing_does_nothing() -> None:
    columns = Columns(Keeper(), DTYPE)
    columns.write(slots(), records())
    columns.put(slots(), "value", 1)

    assert len(columns.read(slots())) == 0
    assert list(groups(slots())) == []


def test_chains_are_followed_up_to_a_limit() -> None:
    columns = Columns(Keeper(), DTYPE)
    columns.write(columns.claim(4), records(0, 1, 2, 3))
    columns.put(slots(0, 1, 2), "next", np.array([3, 4, 2]))

    assert columns.follow(0, "next") == [0, 2, 1, 3]
    assert columns.follow(0, "next", 2) == [0, 2]
    assert columns.follow(-1, "next") == []


def test_slots_of_an_image_leave_the_same_holes() -> None:
    columns = Columns(Keeper(), DTYPE)
    columns.claim_exactly(slots(1, 2, 5))
    columns.claim_exactly(slots(9))

    assert columns.claim(6).tolist() == [0, 3, 4, 6, 7, 8]
    assert columns.claim(1).tolist() == [10]
    with pytest.raises(AssertionError):
        columns.claim_exactly(slots(3))


_steps = st.lists(
    st.one_of(
        st.tuples(st.just("claim"), st.integers(1, 300)),
        st.tuples(st.just("release"), st.integers(0, 10_000)),
        st.tuples(st.just("put"), st.integers(0, 10_000)),
        st.tuples(st.just("take"), st.just(0)),
        st.tuples(st.just("drop"), st.integers(0, 3)),
    ),
    max_size=30,
)


@pytest.mark.usefixtures("tiny_segments")
@given(_steps)
def test_views_of_columns_are_copies_of_their_moment(steps: list[tuple[str, int]]) -> None:
    keeper = Keeper()
    live = Columns(keeper, DTYPE)
    model: dict[int, int] = {}
    held: list[tuple[Lease, ColumnsView, dict[int, int]]] = []
    for number, (kind, amount) in enumerate(steps):
        if kind == "take":
            lease = keeper.take()
            held.append((lease, live.view(lease.past), dict(model)))
            continue
        if kind == "drop":
            del held[amount : amount + 1]
            continue
        keeper.begin()
        known = slots(*(slot for slot in sorted(model) if (slot * 7919 + amount) % 5 == 0))
        if kind == "claim":
            taken = live.claim(amount)
            live.write(taken, records(*[number] * amount))
            model |= dict.fromkeys(taken.tolist(), number)
        elif kind == "release":
            live.release(known)
            for slot in known.tolist():
                del model[slot]
        else:
            live.put(known, "value", -number)
            model |= dict.fromkeys(known.tolist(), -number)
        keeper.end()

    for _, view, then in [*held, (None, live, model)]:
        used = view.in_use(0, 1 << 20)
        assert dict(zip(used.tolist(), view.read(used)["value"].tolist(), strict=True)) == then
        if then:
            slot = max(then)
            assert view.one(slot)["value"] == then[slot]
            assert view.follow(slot, "next") == [slot]

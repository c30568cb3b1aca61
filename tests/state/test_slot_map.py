"""Bytes beside columns, in stretches: a model test against one plain dict, and what a snapshot still sees."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fedsched.state.past import Keeper
from fedsched.state.slot_map import STRETCH_SHIFT, SlotMap

SLOTS = st.sampled_from([0, 1, 2, (1 << STRETCH_SHIFT) - 1, 1 << STRETCH_SHIFT, 3 << STRETCH_SHIFT])
STEPS = st.lists(st.tuples(st.booleans(), st.lists(SLOTS, unique=True), st.binary(max_size=2)), max_size=12)


@settings(max_examples=100)
@given(STEPS)
def test_it_holds_what_one_dict_would_hold(steps: list[tuple[bool, list[int], bytes]]) -> None:
    values, model = SlotMap(Keeper()), dict[int, bytes]()
    for is_put, slots, value in steps:
        if is_put:
            values.put(slots, [value] * len(slots))
            model |= dict.fromkeys(slots, value)
        else:
            values.drop(slots)
            for slot in slots:
                model.pop(slot, None)
        assert len(values) == len(model)
        assert all(values.get(slot) == model.get(slot) for slot in range(3))
        assert values.get(1 << STRETCH_SHIFT) == model.get(1 << STRETCH_SHIFT)


def test_a_stretch_that_is_empty_again_takes_no_room() -> None:
    values = SlotMap(Keeper())
    values.put([5, 1 << STRETCH_SHIFT], [b"a", b"b"])
    values.drop([5, 1 << STRETCH_SHIFT])
    assert values._stretches == {}

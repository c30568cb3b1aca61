from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedsched.state.chains import Chains
from fedsched.state.columns import Columns
from fedsched.state.past import Keeper

MEMBERS = np.dtype([("used", "<u4"), ("next_x", "<i4"), ("prev_x", "<i4")])
OWNERS = np.dtype([("used", "<u4"), ("head", "<i4"), ("tail", "<i4")])


class Fixture:
    def __init__(self, owners: int = 5, *, first_owner: int = 0) -> None:
        keeper = Keeper()
        self.members = Columns(keeper, MEMBERS)
        self.owners = Columns(keeper, OWNERS)
        record = np.zeros(first_owner + owners, dtype=OWNERS)
        record["used"] = 1
        self.owners.write(self.owners.claim(len(record)), record)
        self.chains = Chains(self.members, self.owners, "x")

    def append(self, owners: list[int]) -> list[int]:
        slots = self.members.claim(len(owners))
        records = np.zeros(len(owners), dtype=MEMBERS)
        records["used"] = 1
        if len(set(owners)) == 1:
            self.chains.append_to_one(slots, owners[0], records)
        else:
            self.chains.append(slots, np.array(owners, dtype=np.int64), records)
        self.members.write(slots, records)
        return [int(slot) for slot in slots]

    def remove(self, slots: list[int], owners: list[int]) -> None:
        where = np.array(slots, dtype=np.int64)
        self.chains.remove(where, self.members.read(where), np.array(owners, dtype=np.int64))
        self.members.release(where)

    def chain(self, owner: int) -> list[int]:
        ends = self.owners.one(owner)
        forwards = self.members.follow(int(ends["head"]) - 1, "next_x")
        assert self.members.follow(int(ends["tail"]) - 1, "prev_x") == forwards[::-1]
        return forwards


@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 4), min_size=1, max_size=8)), max_size=20), st.data())
def test_chains_are_lists_per_owner(steps: list[tuple[bool, list[int]]], data: st.DataObject) -> None:
    fixture = Fixture()
    model: dict[int, list[int]] = {owner: [] for owner in range(5)}
    for is_added, owners in steps:
        members = [(slot, owner) for owner, slots in model.items() for slot in slots]
        if is_added:
            for slot, owner in zip(fixture.append(owners), owners, strict=True):
                model[owner].append(slot)
        elif members:
            gone = data.draw(st.lists(st.sampled_from(members), min_size=1, unique=True))
            fixture.remove([slot for slot, _ in gone], [owner for _, owner in gone])
            for slot, owner in gone:
                model[owner].remove(slot)

    assert {owner: fixture.chain(owner) for owner in range(5)} == model


def test_a_long_run_in_the_middle_is_taken_out_at_once() -> None:
    fixture = Fixture()
    slots = fixture.append([1] * 100)
    fixture.remove(slots[1:99], [1] * 98)

    assert fixture.chain(1) == [slots[0], slots[99]]


def test_owners_with_large_numbers_are_kept_apart_too() -> None:
    fixture = Fixture(2, first_owner=70_000)
    first = fixture.append([70_001, 70_000, 70_001])

    assert fixture.chain(70_001) == [first[0], first[2]]
    assert fixture.chain(70_000) == [first[1]]

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fedsched.state.columns import Slots
from fedsched.state.id_map import CELLS_AT_FIRST, IdMap, Words, words_of


class Ids:
    """Where the ids are kept that a map only holds marks of."""

    def __init__(self) -> None:
        self.words: Words = np.zeros((20_000, 2), dtype=np.uint64)
        self.map = IdMap(lambda slots: self.words[slots], lambda slot: tuple(self.words[slot].tolist()))

    def add(self, identities: list[bytes], slots: list[int]) -> None:
        words, where = words_of(b"".join(identities)), np.array(slots, dtype=np.int64)
        self.words[where] = words
        self.map.add(self.map.look_up(words), where)

    def remove(self, identities: list[bytes], slots: list[int]) -> None:
        self.map.remove(words_of(b"".join(identities)), np.array(slots, dtype=np.int64))

    def find(self, identities: list[bytes]) -> Slots:
        return self.map.find(words_of(b"".join(identities)))


def an_identity(number: int) -> bytes:
    return number.to_bytes(16, "big")


@given(
    st.lists(
        st.tuples(st.booleans(), st.sets(st.integers(0, 400), min_size=1, max_size=120)),
        max_size=14,
    )
)
def test_it_is_a_dict_from_id_to_slot(steps: list[tuple[bool, set[int]]]) -> None:
    ids = Ids()
    model: dict[bytes, int] = {}
    for is_added, numbers in steps:
        wanted = [an_identity(n) for n in sorted(numbers) if (an_identity(n) in model) != is_added]
        if not wanted:
            continue
        if is_added:
            taken = set(model.values())
            free = [slot for slot in range(1_000) if slot not in taken][: len(wanted)]
            ids.add(wanted, free)
            model |= dict(zip(wanted, free, strict=True))
        else:
            ids.remove(wanted, [model.pop(identity) for identity in wanted])

    everybody = [an_identity(n) for n in range(401)]
    assert ids.find(everybody).tolist() == [model.get(identity, -1) for identity in everybody]
    assert [ids.map.find_one(identity) for identity in everybody] == [model.get(i, -1) for i in everybody]
    assert len(ids.map) == len(model)


def test_ids_stay_findable_while_the_cells_are_being_moved() -> None:
    ids = Ids()
    total = 0
    moving = 0
    for batch in range(200):
        numbers = range(total, total + 97)
        ids.add([an_identity(n * n) for n in numbers], list(numbers))
        total += 97
        if ids.map._old is not None:
            moving += 1
            probe = list(range(0, total, 53))
            assert ids.find([an_identity(n * n) for n in probe]).tolist() == probe
            assert all(ids.map.find_one(an_identity(n * n)) == n for n in probe[::9])
        if batch % 10 == 9:
            gone = list(range(total - 97, total, 2))
            ids.remove([an_identity(n * n) for n in gone], gone)
            assert (ids.find([an_identity(n * n) for n in gone]) == -1).all()
            ids.add([an_identity(n * n) for n in gone], gone)

    assert moving
    assert ids.find([an_identity(n * n) for n in range(total)]).tolist() == list(range(total))
    assert ids.map.nbytes() > 8 * CELLS_AT_FIRST


def test_many_removals_do_not_fill_the_map_for_ever() -> None:
    ids = Ids()
    for number in range(3_000):
        ids.add([an_identity(number)], [number % 7])
        ids.remove([an_identity(number)], [number % 7])

    assert len(ids.map) == 0
    assert ids.map.nbytes() <= 16 * CELLS_AT_FIRST


def test_a_batch_larger_than_the_whole_map_fits() -> None:
    ids = Ids()
    ids.add([an_identity(1)], [0])
    ids.add([an_identity(n) for n in range(2, 5_000)], list(range(1, 4_999)))

    assert ids.find([an_identity(n) for n in range(1, 5_000)]).tolist() == list(range(4_999))

from __future__ import annotations

from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsched.state.past import Keeper, Lease
from fedsched.state.table import Key, MapReader, MapView, OrderedMap, Row, Table, scan


class Thing(Row):
    table: ClassVar[str] = "things"

    name: str
    colour: str = ""
    size: int = 0

    @property
    def key(self) -> Key:
        return (self.name,)


def a_table() -> tuple[Keeper, Table[Thing]]:
    keeper = Keeper()
    return keeper, Table(keeper, Thing, {"colour": lambda row: (row.colour, row.size) if row.colour else None})


def test_rows_are_found_by_key_and_by_index() -> None:
    _, table = a_table()
    for row in (Thing(name="a", colour="red", size=2), Thing(name="b", colour="red", size=1), Thing(name="c")):
        table.put(row)

    assert table.get("b") == Thing(name="b", colour="red", size=1)
    assert table.get("x") is None
    assert [row.name for row in table.by("colour", "red")] == ["b", "a"]
    assert [row.name for row in table.by("colour")] == ["b", "a"]
    assert [row.name for row in table.scan(start=("b",))] == ["b", "c"]
    assert [row.name for row in table.scan("c")] == ["c"]
    assert len(table) == 3


def test_a_changed_row_moves_in_its_index() -> None:
    _, table = a_table()
    table.put(Thing(name="a", colour="red"))
    table.put(Thing(name="a", colour="blue"))

    assert list(table.by("colour", "red")) == []
    assert [row.name for row in table.by("colour", "blue")] == ["a"]
    table.delete("a")
    assert list(table.by("colour")) == []
    assert table.delete("a") is None
    assert table.index_problems() == []


def test_the_digest_depends_on_rows_and_not_on_their_history() -> None:
    _, first = a_table()
    _, second = a_table()
    first.put(Thing(name="a", colour="red"))
    first.put(Thing(name="b"))
    second.put(Thing(name="b", size=7))
    second.put(Thing(name="c"))
    assert first.digest != second.digest

    second.delete("c")
    second.put(Thing(name="a", colour="red"))
    second.put(Thing(name="b"))
    assert first.digest == second.digest


def test_a_wrong_index_or_digest_is_noticed_by_the_check() -> None:
    _, table = a_table()
    table.put(Thing(name="a", colour="red"))
    table._entries["colour"].pop(("red", 0, ("a",)))
    table.digest += 1

    assert len(table.index_problems()) == 2


def test_a_default_that_msgspec_could_not_recognise_is_refused() -> None:
    class Odd(Thing):
        mood: str = "good"

    with pytest.raises(AssertionError, match="mood"):
        Table(Keeper(), Odd)


def test_a_snapshot_may_not_be_taken_in_the_middle_of_a_change() -> None:
    keeper = Keeper()
    lease = keeper.take()
    keeper.begin()
    with pytest.raises(AssertionError):
        keeper.take()
    keeper.end()
    assert keeper.held() == 1
    del lease
    assert keeper.held() == 0


def test_nothing_is_noted_once_the_last_snapshot_is_gone() -> None:
    keeper, table = a_table()
    lease = keeper.take()
    keeper.begin()
    table.put(Thing(name="a"))
    keeper.end()
    past = lease.past
    noted = len(past.books)
    del lease
    keeper.begin()

    assert keeper.past is None
    table.put(Thing(name="b"))
    assert len(past.books) == noted
    keeper.end()


def test_a_scan_of_a_snapshot_goes_on_while_rows_come_and_go() -> None:
    keeper, table = a_table()
    for number in range(1000):
        table.put(Thing(name=f"{number:04}"))
    lease = keeper.take()
    reader = table.view(lease.past)
    scanned = reader.scan()
    seen = [next(scanned).name]
    keeper.begin()
    for number in range(0, 1000, 3):
        table.delete(f"{number:04}")
        table.put(Thing(name=f"{number:04}x"))
    keeper.end()
    seen += [row.name for row in scanned]

    assert seen == [f"{number:04}" for number in range(1000)]
    assert len(reader) == 1000


_steps = st.lists(
    st.one_of(
        st.tuples(st.just("put"), st.integers(0, 12), st.integers(0, 3)),
        st.tuples(st.just("pop"), st.integers(0, 12), st.just(0)),
        st.tuples(st.just("take"), st.just(0), st.just(0)),
        st.tuples(st.just("drop"), st.integers(0, 5), st.just(0)),
    ),
    max_size=60,
)


@given(_steps, st.integers(0, 12), st.integers(1, 6), st.booleans())
def test_views_of_a_map_are_copies_of_their_moment(
    steps: list[tuple[str, int, int]], start: int, limit: int, after: bool
) -> None:
    keeper = Keeper()
    live: OrderedMap[int] = OrderedMap(keeper)
    held: list[tuple[Lease, MapView[int], dict[Key, int]]] = []
    model: dict[Key, int] = {}
    for kind, number, value in steps:
        if kind == "take":
            lease = keeper.take()
            held.append((lease, live.view(lease.past), dict(model)))
            continue
        if kind == "drop":
            del held[number : number + 1]
            continue
        keeper.begin()
        if kind == "put":
            live.put((number,), value)
            model[(number,)] = value
        else:
            assert live.pop((number,)) == model.pop((number,), None)
        keeper.end()

    views: list[tuple[MapReader[int], dict[Key, int]]] = [(live, model), *((view, then) for _, view, then in held)]
    for view, then in views:
        assert dict(scan(view)) == then
        assert len(view) == len(then)
        assert [view.get((n,)) for n in range(13)] == [then.get((n,)) for n in range(13)]
        wanted = [key for key in sorted(then) if (key > (start,) if after else key >= (start,))]
        assert view.page((start,), limit, after=after) == wanted[:limit]
        wanted = [key for key in sorted(then, reverse=True) if (key < (start,) if after else key <= (start,))]
        assert view.page((start,), limit, after=after, back=True) == wanted[:limit]
        assert [key for key, _ in scan(view, back=True)] == sorted(then, reverse=True)

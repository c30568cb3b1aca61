"""The table and its digest."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fedsched.gossip.members import Member, Members, encode_tags, odd_version, tags_of, versions_are_sound
from fedsched.gossip.messages import VERSIONS_NOW, Row, State
from tests.gossip.kit import addr, alive


def a_member(name: str, inc: int = 1, state: State = State.ALIVE) -> Member:
    return Member(name, addr(1), inc, state, encode_tags({"id": name}), VERSIONS_NOW, 0.0)


@given(st.permutations(range(6)))
def test_the_digest_forgets_in_which_order_things_were_learned(order: list[int]) -> None:
    table, other = Members(), Members()
    for number in range(6):
        table.put(a_member(f"n{number}", number))
    for number in order:
        other.put(a_member(f"n{number}"))
        other.put(a_member(f"n{number}", number))

    assert table.digest == other.digest
    assert table.up == other.up == 6


def test_the_dead_do_not_count() -> None:
    table = Members()
    table.put(a_member("a"))
    before = table.digest

    table.put(a_member("b"))
    table.put(a_member("b", state=State.SUSPECT))
    assert table.digest != before
    table.put(a_member("b", state=State.DEAD))
    assert (table.digest, table.up, table.failed) == (before, 1, {"b"})
    table.remove("b")
    assert [m.name for m in table] == ["a"]
    assert table.get("b") is None


def test_tables_on_one_ground_do_not_disturb_each_other() -> None:
    first = Members()
    for name in "abc":
        first.put(a_member(name))
    ground = first.as_ground()
    one, other = Members(ground), Members(ground)

    one.put(a_member("a", state=State.DEAD))
    one.put(a_member("d"))
    one.remove("a")

    assert sorted(m.name for m in one) == ["b", "c", "d"]
    assert sorted(m.name for m in other) == ["a", "b", "c"]
    assert other.digest == first.digest != one.digest


def test_everybody_is_watched_by_exactly_one_on_the_ring() -> None:
    table = Members()
    for number in range(20):
        table.put(a_member(f"n{number}", state=State.DEAD if number % 4 == 0 else State.ALIVE))
    up = sorted(m.name for m in table if m.is_up)

    watched = [member.name for name in up if (member := table.next_on_ring(name)) is not None]

    assert sorted(watched) == up
    assert Members().next_on_ring("alone") is None


@given(st.binary(max_size=64))
def test_odd_tags_are_no_tags(meta: bytes) -> None:
    assert all(isinstance(value, str) for value in tags_of(meta).values())


def test_versions_must_be_sound_and_understood_by_all() -> None:
    assert versions_are_sound(VERSIONS_NOW)
    assert not versions_are_sound((0, 1, 1, 1, 1, 1))
    assert not versions_are_sound((2, 1, 1, 1, 1, 1))
    newer = alive("new", 9)._replace(versions=(2, 3, 3, 1, 1, 1))
    assert odd_version([Row(newer, State.ALIVE)], VERSIONS_NOW) is not None
    assert odd_version([Row(newer, State.LEFT)], VERSIONS_NOW) is None

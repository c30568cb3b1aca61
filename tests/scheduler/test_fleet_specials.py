"""Who holds the same ports, cores, devices and volumes on a node."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fedsched.scheduler.fleet_specials import Specials, _things
from fedsched.scheduler.special import HeldDevices, HeldPort, HeldVolume, Special

PORT = Special(ports=(HeldPort("default", "10.0.0.1", 80),))
CORES = Special(cores=(1, 2))
GPU = Special(devices=(HeldDevices("v/gpu/m", ("g0", "g1")),))
DISK = Special(volumes=(HeldVolume("data", True),))


def test_only_those_are_found_that_hold_something_of_what_is_wanted() -> None:
    known = Specials()
    for key, special in enumerate((PORT, CORES, GPU, DISK)):
        known.put(7, key, special)

    assert known.sharing(7, [PORT]) == [0]
    assert known.sharing(7, [Special(cores=(2, 3)), DISK]) == [1, 3]
    assert known.sharing(7, [Special(devices=(HeldDevices("v/gpu/m", ("g1",)),))]) == [2]
    assert known.sharing(7, [Special(devices=(HeldDevices("v/gpu/other", ("g1",)),))]) == []
    assert known.sharing(7, [Special(ports=(HeldPort("other", "10.0.0.9", 80),))]) == [0]  # who is asked decides
    assert known.sharing(8, [PORT]) == []


def test_what_is_dropped_is_found_no_more_and_what_is_put_again_counts_as_it_is_now() -> None:
    known = Specials()
    known.put(7, 1, PORT)
    known.put(7, 1, CORES)
    assert (known.sharing(7, [PORT]), known.sharing(7, [CORES])) == ([], [1])

    known.drop(7, 1)
    known.drop(7, 1)

    assert not known
    assert not known._holders


_ports = st.lists(st.integers(1, 4), max_size=3).map(
    lambda values: Special(ports=tuple(HeldPort("default", "a", value) for value in values), cores=(0,))
)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4), st.none() | _ports), max_size=30), _ports)
@settings(max_examples=100)
def test_it_is_as_if_all_were_looked_at(steps: list[tuple[int, int, Special | None]], wanted: Special) -> None:
    known = Specials()
    for node, key, special in steps:
        if special is None:
            known.drop(node, key)
        else:
            known.put(node, key, special)

    for other in (known, known.duplicate()):
        for node in range(3):
            slow = [key for key, held in other.get(node, {}).items() if {*_things(held)} & {*_things(wanted)}]
            assert other.sharing(node, [wanted]) == sorted(slow)

"""Ports: who may have which, on which addresses, and how dynamic ones are drawn."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from fedsched.model.network import NetworkResource, Port
from fedsched.model.node import HostNetworkInfo, Node
from fedsched.scheduler.ports import MAX_PORT, BadPorts, PortIndex, PortOffer, parse_ports
from fedsched.scheduler.special import HeldPort
from tests.scheduler.places import a_network, a_place, an_address, dynamic, static


def offered(index: PortIndex, network: NetworkResource, seed: int = 0) -> PortOffer:
    given = index.offer(network, seed)
    assert isinstance(given, PortOffer), given
    return given


def values(node: Node, *held: HeldPort, count: int = 1, seed: int = 0) -> list[int]:
    ask = a_network(*(dynamic(f"p{number}") for number in range(count)))
    return [port.value for port in offered(PortIndex(node, held), ask, seed).held]


@pytest.mark.parametrize(
    ("text", "ranges"),
    [
        ("", ()),
        ("80", ((80, 80),)),
        ("80,100-200", ((80, 80), (100, 200))),
        (" 100 - 200 , 80 ", ((80, 80), (100, 200))),
        ("10-20,15-30,31", ((10, 31),)),
        ("0-65535", ((0, MAX_PORT),)),
    ],
)
def test_lists_of_ports_are_read_into_ranges(text: str, ranges: tuple[tuple[int, int], ...]) -> None:
    assert parse_ports(text) == ranges


@pytest.mark.parametrize("text", ["http", "70000", "20-10", "-5", "1-", "1-2-3", "٣", "1.5"])
def test_what_is_no_list_of_ports_is_refused(text: str) -> None:
    with pytest.raises(BadPorts, match=r"port|range"):
        parse_ports(text)


def test_a_port_gets_the_first_address_of_its_host_network() -> None:
    node = a_place(addresses=(an_address("10.0.0.1"), an_address("10.0.0.2"), an_address("192.168.0.1", "private")))
    ask = a_network(static("http", 8080), static("db", 5432, host_network="private"))

    given = offered(PortIndex(node), ask)

    assert given.held == (HeldPort("default", "10.0.0.1", 8080), HeldPort("private", "192.168.0.1", 5432))
    assert [mapping.host_ip for mapping in given.mappings] == ["10.0.0.1", "192.168.0.1"]
    assert (given.network.device, given.network.ip) == ("eth0", "10.0.0.1")


def test_a_static_port_fits_once_per_host_network_even_with_two_addresses() -> None:
    node = a_place(addresses=(an_address("10.0.0.1"), an_address("10.0.0.2")))
    index = PortIndex(node, [HeldPort("default", "10.0.0.1", 8080)])

    assert index.offer(a_network(static("http", 8080))) == "reserved port collision http=8080"
    assert not index.collides


def test_the_same_static_port_fits_on_another_host_network() -> None:
    node = a_place(addresses=(an_address("10.0.0.1"), an_address("192.168.0.1", "private")))
    index = PortIndex(node, [HeldPort("default", "10.0.0.1", 8080)])

    given = offered(index, a_network(static("http", 8080, host_network="private")))

    assert given.held == (HeldPort("private", "192.168.0.1", 8080),)


def test_host_networks_that_share_an_address_share_its_ports() -> None:
    node = a_place(
        addresses=(an_address("10.0.0.1"), an_address("10.0.0.1", "public"), an_address("10.0.0.9", "public"))
    )

    assert PortIndex(node, [HeldPort("public", "10.0.0.1", 80)]).offer(a_network(static("a", 80))) == (
        "reserved port collision a=80"
    )
    assert PortIndex(node, [HeldPort("default", "10.0.0.1", 80)]).offer(
        a_network(static("a", 80, host_network="public"))
    ) == ("reserved port collision a=80")
    both = a_network(static("a", 80), static("b", 80, host_network="public"))
    assert PortIndex(node).offer(both) == "reserved port collision b=80"


def test_ports_kept_for_the_node_are_taken_everywhere_and_those_of_a_network_on_it() -> None:
    node = a_place(
        addresses=(an_address("10.0.0.1"), an_address("192.168.0.1", "private", reserved="5000-5010")),
        reserved_ports="22",
        host_networks={"private": HostNetworkInfo(name="private", reserved_ports="9000")},
    )
    index = PortIndex(node)

    assert [index.is_free(alias, 22) for alias in ("default", "private")] == [False, False]
    assert index.is_free("default", 5005)
    assert not index.is_free("private", 5005)
    assert not index.is_free("private", 9000)
    assert index.is_kept("private", 5005)
    assert not index.is_kept("default", 5005)
    assert index.offer(a_network(static("ssh", 22))) == "reserved port collision ssh=22"


def test_ignore_collision_skips_the_check() -> None:
    index = PortIndex(a_place(reserved_ports="80"), [HeldPort("default", "10.0.0.1", 8080)])

    given = offered(index, a_network(static("a", 8080, ignore_collision=True), static("b", 80, ignore_collision=True)))

    assert [port.value for port in given.held] == [8080, 80]
    assert all(port.may_collide for port in given.held)
    assert all(mapping.ignore_collision for mapping in given.mappings)


def test_ignore_collision_has_no_effect_off_the_hosts_own_network() -> None:
    index = PortIndex(a_place(), [HeldPort("default", "10.0.0.1", 8080)])
    ask = a_network(static("a", 8080, ignore_collision=True), mode="bridge")

    assert index.offer(ask) == "reserved port collision a=8080"


def test_only_ports_that_come_new_can_collide_with_those_that_are_there() -> None:
    mine, polite = HeldPort("default", "10.0.0.1", 80), HeldPort("default", "10.0.0.1", 80, may_collide=True)
    index = PortIndex(a_place(reserved_ports="22"), [mine, mine])

    assert index.would_collide([mine])
    assert not index.would_collide([polite])
    assert not index.would_collide([HeldPort("default", "10.0.0.1", 81)])
    assert index.would_collide([HeldPort("default", "10.0.0.1", 81)] * 2)
    assert index.would_collide([HeldPort("default", "10.0.0.1", 22)])
    assert not index.would_collide([HeldPort("default", "10.0.0.1", 22, may_collide=True)])
    assert index.collides, "and the index itself is as it was"


def test_two_holders_collide_unless_one_of_them_does_not_mind() -> None:
    mine, polite = HeldPort("default", "10.0.0.1", 80), HeldPort("default", "10.0.0.1", 80, may_collide=True)

    assert PortIndex(a_place(), [mine, mine]).collides
    assert not PortIndex(a_place(), [mine, polite]).collides
    assert not PortIndex(a_place(), [polite, mine, polite]).collides
    assert PortIndex(a_place(), [polite, mine, polite, mine]).collides
    assert not PortIndex(a_place(), [polite]).is_free("default", 80)


def test_a_port_held_on_a_host_network_that_is_gone_still_counts_on_its_address() -> None:
    index = PortIndex(a_place(), [HeldPort("old", "10.0.0.1", 80)])

    assert not index.is_free("default", 80)


def test_a_missing_host_network_or_impossible_port_is_named() -> None:
    index = PortIndex(a_place())

    assert index.offer(a_network(static("a", 80, host_network="dmz"))) == "no addresses available for dmz network"
    assert index.offer(a_network(dynamic("a", host_network="dmz"))) == "no addresses available for dmz network"
    assert index.offer(a_network(static("a", 70000))) == "invalid port 70000 (out of range)"
    assert (
        index.offer(a_network(dynamic(host_network="${meta.net}"))) == "no addresses available for ${meta.net} network"
    )


def test_a_host_network_may_be_named_by_an_attribute() -> None:
    node = a_place(addresses=(an_address("10.0.0.1"), an_address("10.9.0.1", "dmz")), meta={"net": "dmz"})
    ask = a_network(static("a", 80, host_network="${meta.net}"), dynamic("b", host_network="${meta.net}"))

    given = offered(PortIndex(node), ask)

    assert {port.host_network for port in given.held} == {"dmz"}
    assert given.network.dynamic_ports[0].host_network == "dmz"


def test_to_is_the_host_port_for_minus_one_and_stays_otherwise() -> None:
    ask = a_network(static("a", 80, to=-1), static("b", 81, to=8080), dynamic("c", to=-1), dynamic("d"))

    given = offered(PortIndex(a_place()), ask)

    by_label = {mapping.label: mapping for mapping in given.mappings}
    assert by_label["a"].to == 80
    assert by_label["b"].to == 8080
    assert by_label["c"].to == by_label["c"].value
    assert by_label["d"].to == 0


def test_dynamic_ports_lie_in_20000_to_32000_unless_the_node_says_otherwise() -> None:
    drawn = [value for seed in range(300) for value in values(a_place(), seed=seed)]

    assert min(drawn) >= 20000
    assert max(drawn) < 32000
    assert len(set(drawn)) > 280
    assert all(9 <= value < 12 for seed in range(50) for value in values(a_place(dynamic=(9, 12)), seed=seed))
    assert 20000 <= values(a_place(dynamic=(0, 0)))[0] < 32000


def test_the_same_seed_draws_the_same_ports() -> None:
    assert values(a_place(), count=5, seed=7) == values(a_place(), count=5, seed=7)
    assert values(a_place(), count=5, seed=7) != values(a_place(), count=5, seed=8)


def test_random_draws_leave_out_the_top_port_which_the_exact_choice_may_give() -> None:
    node = a_place(dynamic=(100, 102))

    assert 102 not in {values(node, seed=seed)[0] for seed in range(200)}
    assert sorted(values(node, count=3)) == [100, 101, 102]


def test_when_few_ports_are_left_every_one_of_them_is_still_found() -> None:
    taken = [HeldPort("default", "10.0.0.1", value) for value in range(20000, 32001) if value not in (20007, 31999)]
    index = PortIndex(a_place(), taken)

    assert sorted(port.value for port in offered(index, a_network(dynamic("a"), dynamic("b"))).held) == [20007, 31999]
    assert index.offer(a_network(dynamic("a"), dynamic("b"), dynamic("c"))) == "dynamic port selection failed"


def test_a_dynamic_port_is_never_one_of_the_same_offer() -> None:
    node = a_place(dynamic=(100, 104))

    for seed in range(100):
        given = offered(PortIndex(node), a_network(static("s", 102), dynamic("a"), dynamic("b"), dynamic("c")), seed)
        assert sorted(port.value for port in given.held)[0] >= 100
        assert len({port.value for port in given.held}) == 4


def test_an_offer_without_ports_is_empty() -> None:
    given = offered(PortIndex(a_place(addresses=())), a_network())

    assert (given.held, given.mappings, given.network.ip) == ((), (), "")


_held = st.lists(
    st.builds(
        HeldPort,
        st.sampled_from(["default", "public", "gone"]),
        st.sampled_from(["10.0.0.1", "10.0.0.2"]),
        st.integers(80, 83) | st.integers(20000, 20003),
        st.booleans(),
    ),
    max_size=6,
    unique_by=lambda port: port.value,
)
_asks = st.builds(
    lambda statics, dynamics: NetworkResource(
        mode="host",
        reserved_ports=tuple(Port(label=f"s{port}", value=port) for port in statics),
        dynamic_ports=tuple(Port(label=f"d{number}") for number in range(dynamics)),
    ),
    st.lists(st.integers(79, 84), max_size=2, unique=True),
    st.integers(0, 3),
)


@given(_held, _asks, st.integers(0, 99))
def test_asking_for_holders_by_number_gives_what_looking_at_all_of_them_gives(
    held: list[HeldPort], ask: NetworkResource, seed: int
) -> None:
    node = a_place()
    resources = replace(node.node_resources, min_dynamic_port=20000, max_dynamic_port=20004)
    node = replace(node, node_resources=resources)

    def holders(value: int) -> list[HeldPort]:
        return [port for port in held if port.value == value]

    slow, fast = PortIndex(node, held), PortIndex(node, holders=holders)

    first = slow.offer(ask, seed)
    assert first == fast.offer(ask, seed)
    if not isinstance(first, str):
        slow, fast = slow.with_(first.held), fast.with_(first.held)
        assert slow.offer(ask, seed) == fast.offer(ask, seed)
    for value in (80, 81, 20001):
        new = [HeldPort("default", "10.0.0.1", value)]
        assert slow.would_collide(new) == fast.would_collide(new)

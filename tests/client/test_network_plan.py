"""What networks of groups should be like, decided without touching any."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsched.client.network import filter_rules, plan
from fedsched.client.network.etc_files import checked_hostname, host_resolver_text, hosts_text, resolver_text
from fedsched.client.network.offer import overlap
from fedsched.client.network.plan import AddressBook, Attached, Bridge, Forward, NetworkRefused
from fedsched.model.alloc import Allocation
from fedsched.model.network import DNSConfig, PortMapping
from fedsched.model.resources import AllocatedResources, AllocatedSharedResources
from tests.builders import an_id

SUBNET = ipaddress.IPv4Network("172.26.64.0/29")
BRIDGE = Bridge("fedsched", ipaddress.IPv4Network("172.26.64.0/20"))
WEB = Attached("a", "172.26.64.2", (Forward("10.0.0.5", 20_001, 80), Forward("", 443, 443)))


def with_ports(*ports: PortMapping) -> Allocation:
    return Allocation(id=an_id(7), allocated_resources=AllocatedResources(shared=AllocatedSharedResources(ports=ports)))


# -- addresses


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 7)), max_size=60))
def test_no_two_live_allocations_ever_have_one_address(steps: list[tuple[bool, int]]) -> None:
    book = AddressBook(SUBNET)

    for gives, number in steps:
        if not gives:
            book.free(str(number))
            continue
        had = book.taken.get(str(number))
        try:
            address = book.give(str(number))
        except NetworkRefused:
            assert len(book.taken) == 5
            continue
        assert had in (None, address)
        assert ipaddress.IPv4Address(address) in SUBNET
        assert address not in ("172.26.64.0", "172.26.64.1", "172.26.64.7")
    assert len(set(book.taken.values())) == len(book.taken) <= 5


def test_an_address_rests_before_it_is_given_again() -> None:
    book = AddressBook(SUBNET)
    first = book.give("a")
    book.free("a")

    later = [book.give(name) for name in "bcdef"]

    assert later[-1] == first
    with pytest.raises(NetworkRefused, match=r"all 5 addresses of 172\.26\.64\.0/29 are taken"):
        book.give("g")


@pytest.mark.parametrize("address", ["", "x", "172.26.64.1", "172.26.64.7", "10.0.0.1", "::1"])
def test_an_address_that_is_not_the_subnets_is_not_kept(address: str) -> None:
    assert not AddressBook(SUBNET).keep("a", address)


def test_an_address_is_kept_by_whom_it_belongs_to() -> None:
    book = AddressBook(SUBNET)

    assert book.keep("a", "172.26.64.3")
    assert book.keep("a", "172.26.64.3")
    assert not book.keep("b", "172.26.64.3")
    assert book.give("a") == "172.26.64.3"
    assert book.give("b") == "172.26.64.4"


# -- ports and names


def test_ports_lead_to_their_number_inside() -> None:
    ports = (
        PortMapping(label="a", value=20_000, to=80, host_ip="10.0.0.5"),
        PortMapping(label="b", value=20_001, to=-1, host_ip="0.0.0.0"),
        PortMapping(label="c", value=20_002),
    )

    found = plan.forwards_of(with_ports(*ports))

    assert found == (Forward("10.0.0.5", 20_000, 80), Forward("", 20_001, 20_001), Forward("", 20_002, 20_002))
    assert plan.forwards_of(Allocation(id=an_id(7))) == ()


@pytest.mark.parametrize(("host_ip", "says"), [("fd00::1", "IPv4 only"), ("1.2.3.4 -j X", "no address")])
def test_ports_on_other_addresses_are_refused(host_ip: str, says: str) -> None:
    with pytest.raises(NetworkRefused, match=says):
        plan.forwards_of(with_ports(PortMapping(label="a", value=1, host_ip=host_ip)))


def test_names_fit_the_kernel_and_tell_whose_they_are() -> None:
    name = plan.namespace_name(an_id(1), an_id(7))

    assert plan.alloc_of(name, an_id(1)) == an_id(7)
    assert plan.alloc_of(name, "ffffffff-0000") == ""
    assert plan.alloc_of("blue", an_id(1)) == ""
    assert len(plan.link_name(an_id(7))) <= 15
    assert plan.link_name(an_id(7)) != plan.link_name(an_id(8))


def test_only_what_is_ours_and_of_nobody_is_a_stray() -> None:
    mine, live, foreign = (plan.namespace_name(node, an_id(n)) for node, n in ((an_id(1), 5), (an_id(1), 6), ("ff", 5)))

    assert plan.strays([mine, live, foreign, "cni-1"], {an_id(6): None}, an_id(1)) == [mine]
    links = [plan.link_name(an_id(5)), plan.link_name(an_id(6)), "fs0", "veth1"]
    assert plan.stray_links(links, [an_id(6)]) == [plan.link_name(an_id(5))]


def test_an_address_that_is_in_use_is_left_alone() -> None:
    assert any("flush" in command for command in plan.inside_commands(BRIDGE, "172.26.64.2"))
    assert not any("flush" in command for command in plan.inside_commands(BRIDGE, "172.26.64.2", is_kept=True))
    assert plan.inside_commands(None) == ["link set lo up"]


def test_a_subnet_that_somebody_else_is_in_is_not_taken() -> None:
    assert overlap(BRIDGE, [("lo", "127.0.0.1"), ("fedsched", "172.26.64.1"), ("eth0", "::1")]) == ""
    assert "172.26.70.3 of eth0" in overlap(BRIDGE, [("eth0", "172.26.70.3")])


# -- rules


def as_saved(text: str, before: str = "") -> str:
    """What `iptables-save` would say after `iptables-restore --noflush`, as far as we read it."""
    tables: dict[str, list[str]] = {}
    for part in (before, text):
        table = ""
        for line in part.splitlines():
            if line.startswith("*"):
                table = line
                tables.setdefault(table, [])
            elif line.startswith(":"):
                chain = line[1:].split()[0]
                kept = [
                    one for one in tables[table] if one != f":{chain} - [0:0]" and not one.startswith(f"-A {chain} ")
                ]
                tables[table] = [*kept, f":{chain} - [0:0]"]
            elif line.startswith(("-I ", "-A ")):
                tables[table].append("-A" + line[2:])
            elif line.startswith("-D "):
                tables[table].remove("-A" + line[2:])
            elif line.startswith("-F "):
                tables[table] = [one for one in tables[table] if not one.startswith(f"-A {line[3:]} ")]
            elif line.startswith("-X "):
                tables[table].remove(f":{line[3:]} - [0:0]")
    return "".join(f"{table}\n" + "".join(f"{line}\n" for line in lines) for table, lines in tables.items())


attached = st.lists(
    st.builds(
        Attached,
        st.text("abcdef", min_size=1, max_size=3),
        st.sampled_from(["172.26.64.2", "172.26.64.3"]),
        st.lists(
            st.builds(Forward, st.sampled_from(["", "127.0.0.1"]), st.integers(1, 9), st.integers(1, 9)), max_size=3
        ).map(tuple),
    ),
    max_size=4,
)
FOREIGN = "*nat\n:DOCKER - [0:0]\n-A PREROUTING -j DOCKER\n-A DOCKER -p tcp -j RETURN\n"


@given(attached, attached)
def test_rules_replace_whatever_was_there_and_go_without_a_trace(old: list[Attached], new: list[Attached]) -> None:
    once = as_saved(filter_rules.iptables_text(BRIDGE, new, FOREIGN), FOREIGN)
    before = as_saved(filter_rules.iptables_text(BRIDGE, old, FOREIGN), FOREIGN)

    after = as_saved(filter_rules.iptables_text(BRIDGE, new, before), before)

    assert sorted(after.splitlines()) == sorted(once.splitlines())
    gone = as_saved(filter_rules.iptables_removal(BRIDGE, after), after)
    assert [line for line in gone.splitlines() if "FS-" in line] == []
    assert all(line in gone for line in FOREIGN.splitlines())
    assert filter_rules.iptables_removal(BRIDGE, gone) == ""


def test_a_port_is_forwarded_for_tcp_and_udp_on_its_own_address() -> None:
    text = filter_rules.iptables_text(BRIDGE, [WEB], "")

    rule = "-A FS-fedsched-DNAT -d 10.0.0.5/32 -p {0} -m {0} --dport 20001 -j DNAT --to-destination 172.26.64.2:80\n"
    assert rule.format("tcp") in text
    assert rule.format("udp") in text
    assert "-A FS-fedsched-DNAT -p tcp -m tcp --dport 443 -j DNAT --to-destination 172.26.64.2:443\n" in text
    assert "-A FS-fedsched-RAW -d 127.0.0.0/8 -i fedsched -j DROP\n" in text


def test_nft_gets_a_table_made_anew() -> None:
    text = filter_rules.nft_text(BRIDGE, [WEB])

    assert text.startswith(
        "table ip fedsched_fedsched\ndelete table ip fedsched_fedsched\ntable ip fedsched_fedsched {"
    )
    assert "    ip daddr 10.0.0.5 udp dport 20001 dnat to 172.26.64.2:80\n" in text
    assert "    tcp dport 443 dnat to 172.26.64.2:443\n" in text


def test_loopback_addresses_are_routed_only_for_ports_on_them() -> None:
    assert not plan.needs_local_routes([WEB])
    assert plan.needs_local_routes([WEB, Attached("b", "172.26.64.3", (Forward("127.0.0.1", 1, 1),))])


# -- files


def test_a_groups_resolver_is_written_down() -> None:
    dns = DNSConfig(servers=("10.0.0.53", "fd00::53"), searches=("a.test", "b.test"), options=("ndots:2", "rotate"))

    assert resolver_text(dns) == (
        "nameserver 10.0.0.53\nnameserver fd00::53\nsearch a.test b.test\noptions ndots:2 rotate\n"
    )


@pytest.mark.parametrize(
    "dns", [DNSConfig(servers=("dns",)), DNSConfig(searches=("a\nnameserver 6.6.6.6",)), DNSConfig(options=("a b",))]
)
def test_a_resolver_that_would_say_something_else_is_refused(dns: DNSConfig) -> None:
    with pytest.raises(NetworkRefused):
        resolver_text(dns)


@pytest.mark.parametrize("name", ["a b", "a\n127.0.0.1 bank", "-a", "x" * 64, ".."])
def test_a_name_that_is_no_hostname_is_refused(name: str) -> None:
    with pytest.raises(NetworkRefused, match="hostname"):
        checked_hostname(name)


def test_the_hosts_own_resolver_is_replaced_by_what_is_behind_it() -> None:
    stub, behind = "nameserver 127.0.0.53\nsearch a.test\n", "nameserver 10.0.0.2\nsearch a.test\n"

    assert host_resolver_text(stub, behind) == behind
    assert host_resolver_text(stub, "") == "search a.test\n"
    assert host_resolver_text("nameserver ::1\nnameserver 10.0.0.2\n", behind) == "nameserver 10.0.0.2\n"


def test_the_hosts_file_names_the_group_at_its_address() -> None:
    assert hosts_text("172.26.64.2", "web").endswith("172.26.64.2 web\n")
    assert "web" not in hosts_text("172.26.64.2", "")

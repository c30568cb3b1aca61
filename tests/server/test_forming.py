from __future__ import annotations

from dataclasses import replace

from fedsched.server.forming import SILENT_AFTER_S, FormingCore, Found, Greeting, Join, Wait, found


def a_greeting(name: str, *, expect: int = 3, cluster_id: str = "", seen: str = "", region: str = "eu") -> Greeting:
    return Greeting(
        id=f"id-{name}",
        name=name,
        address=f"127.0.0.1:{4000 + ord(name[0])}",
        region=region,
        bootstrap_expect=expect,
        cluster_id=cluster_id,
        seen=frozenset(f"id-{other}" for other in seen),
    )


def a_core(name: str = "a", *, expect: int = 3) -> FormingCore:
    return FormingCore(a_greeting(name, expect=expect))


def test_three_servers_that_all_see_each_other_found_the_same_region() -> None:
    decisions = []
    for me in "abc":
        core = a_core(me)
        for other in "abc":
            core.heard(a_greeting(other, seen="abc"), now=0)
        decisions.append(core.decide(now=1))

    assert isinstance(decisions[0], Found)
    assert decisions[0] == decisions[1] == decisions[2]
    assert decisions[0].config.voters == {"id-a", "id-b", "id-c"}


def test_one_expected_server_founds_alone() -> None:
    assert isinstance(a_core(expect=1).decide(now=0), Found)


def test_nobody_founds_while_somebody_is_missing_or_blind() -> None:
    core = a_core()
    core.heard(a_greeting("b", seen="abc"), now=0)
    missing = core.decide(now=0)
    core.heard(a_greeting("c", seen="ac"), now=0)
    blind = core.decide(now=0)

    assert missing == Wait("2 of 3 expected servers are here: a, b")
    assert blind == Wait("not everybody sees everybody yet: c")


def test_a_fourth_server_stops_the_founding_and_is_named() -> None:
    core = a_core()
    for other in "bcd":
        core.heard(a_greeting(other, seen="abcd"), now=0)

    assert core.decide(now=0) == Wait("4 of 3 expected servers are here: a, b, c, d")


def test_differing_expectations_are_refused_with_both_numbers() -> None:
    core = a_core()
    core.heard(a_greeting("b", expect=5, seen="ab"), now=0)

    decision = core.decide(now=0)

    assert isinstance(decision, Wait)
    assert "expects 3 servers but b expects 5" in decision.why


def test_an_existing_region_is_joined_never_founded_again() -> None:
    core = a_core()
    core.heard(a_greeting("b", seen="abc"), now=0)
    core.heard(a_greeting("c", seen="abc", cluster_id="c1"), now=0)

    assert core.decide(now=0) == Join(a_greeting("c").info, "c1")


def test_a_server_that_expects_nobody_only_joins() -> None:
    core = a_core(expect=0)

    assert isinstance(core.decide(now=0), Wait)

    core.heard(a_greeting("b", cluster_id="c1"), now=0)

    assert isinstance(core.decide(now=0), Join)


def test_who_fell_silent_no_longer_counts() -> None:
    core = a_core()
    core.heard(a_greeting("b"), now=0)

    assert core.seen(now=SILENT_AFTER_S) == {"id-a", "id-b"}
    assert core.seen(now=SILENT_AFTER_S + 0.1) == {"id-a"}
    assert core.others(now=SILENT_AFTER_S + 0.1) == []


def test_another_region_is_not_heard_and_the_reason_is_given() -> None:
    core = a_core()

    why = core.heard(a_greeting("b", region="us"), now=0)

    assert why == "server b is of region 'us', we are of 'eu'"
    assert core.seen(now=0) == {"id-a"}


def test_the_cluster_id_depends_on_who_founds_not_on_their_addresses_or_order() -> None:
    servers = [a_greeting(name).info for name in "abc"]
    moved = [replace(server, address="127.0.0.1:1") for server in reversed(servers)]

    assert found(servers).cluster_id == found(moved).cluster_id
    assert found(servers).cluster_id != found(servers[:2]).cluster_id


def test_a_founder_that_is_slower_than_the_others_founds_too_instead_of_asking_in_vain() -> None:
    everybody = [a_greeting(name, seen="abc") for name in "abc"]
    founding = found([greeting.info for greeting in everybody])
    core = a_core()
    core.heard(a_greeting("b", cluster_id=founding.cluster_id, seen="abc"), now=0)
    core.heard(a_greeting("c", seen="ac"), now=0)
    core.heard(a_greeting("d", seen="abcd"), now=0)

    assert core.decide(now=1) == founding


def test_a_server_that_is_no_founder_joins_what_the_founders_made() -> None:
    founding = found([a_greeting(name).info for name in "bcd"])
    core = a_core()
    for name in "bc":
        core.heard(a_greeting(name, cluster_id=founding.cluster_id, seen="abc"), now=0)

    assert core.decide(now=1) == Join(a_greeting("b").info, founding.cluster_id)

"""Gossip keys replaced under way: nobody is lost, nobody sees a key, and who did not answer is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from fedsched.gossip.keyring import BadKey, fingerprint, show_key
from fedsched.gossip.keyring_file import FILE
from fedsched.gossip.profiles import LOCAL
from fedsched.model.errors import Conflict, FedschedError, Unavailable
from fedsched.model.region import ServerMember
from fedsched.rpc.methods.agent import AGENT_SELF
from fedsched.rpc.methods.gossip import (
    GOSSIP_KEYS,
    OPERATOR_KEYRING_CHANGE,
    OPERATOR_KEYRING_LIST,
    OPERATOR_KEYRING_ROTATE,
    KeyOrder,
    KeyringChangeRequest,
    KeyringReply,
    KeyringRotateRequest,
)
from fedsched.server.settings import GossipOptions
from tests.server.region import Member, Region, run_region, until
from tests.server.test_reconciling import QUICK
from tests.server.test_wan import register, run_federation

OLD, NEW = bytes(range(32)), bytes(range(100, 132))


async def change(member: Member, operation: str, key: str) -> KeyringReply:
    reply: KeyringReply = await member.call(OPERATOR_KEYRING_CHANGE, KeyringChangeRequest(operation=operation, key=key))
    return reply


def keys_of(member: Member) -> tuple[bytes, ...]:
    assert member.server.wan is not None
    assert member.server.wan.gossip.keyring is not None
    return member.server.wan.gossip.keyring.keys


def cut_off(member: Member, here: Member) -> None:
    """Have `here` believe that the member's server port is where nobody is."""
    tags = {"role": "fedsched", "region": member.options.region, "id": member.id, "rpc_addr": "127.0.0.1", "port": "1"}
    here.server.directory.member_seen(ServerMember(name=f"{member.name}.{member.options.region}", tags=tags))


def test_a_key_is_rotated_while_two_regions_work_together_and_no_call_fails(tmp_path: Path) -> None:
    async def story(eu: Region, us: Region) -> None:
        here, everybody = await eu.leader(), (*eu.running(), *us.running())
        calls = 0
        failures: list[FedschedError] = []

        async def work() -> None:
            nonlocal calls
            while True:
                try:
                    await register(here, f"web-{calls % 7}", "us")
                    await (us.running()[calls % 3]).job("x", region="eu")
                except FedschedError as error:
                    if error.code != "not_found":
                        failures.append(error)
                calls += 1

        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            for member, operation in ((here, "install"), (us.running()[0], "use"), (us.running()[1], "remove")):
                before = calls
                key = show_key(NEW) if operation != "remove" else fingerprint(OLD)
                reply = await change(member, operation, key)
                (step,) = reply.steps
                assert (step.operation, step.asked, step.answered, step.failures) == (operation, 4, 4, ())
                await until("work went on", lambda before=before: calls >= before + 5)  # type: ignore[misc]
            nursery.cancel_scope.cancel("rotated")

        assert failures == []
        assert {keys_of(one) for one in everybody} == {(NEW,)}
        assert not [line for one in everybody for line in one.said("gossip_member") if line["what"] == "failed"]
        await until("all still know all", lambda: all(len(one.server.directory.regions()) == 2 for one in everybody))
        for one in everybody:
            assert one.server.wan is not None
            assert {seen.state.name for seen in one.server.wan.gossip.members} <= {"ALIVE"}

    run_federation(tmp_path, story, keys=(OLD,))


def test_a_rotation_makes_its_key_and_removes_the_former_ones_when_the_grace_is_over(tmp_path: Path) -> None:
    async def story(eu: Region, us: Region) -> None:
        here, everybody = await eu.leader(), (*eu.running(), *us.running())

        reply = await here.call(OPERATOR_KEYRING_ROTATE, KeyringRotateRequest(grace_s=0.3))

        assert [(step.operation, step.answered) for step in reply.steps] == [("install", 4), ("use", 4)]
        assert reply.removal_in_s == 0.3
        assert [(one.fingerprint, one.held_by, one.primary_of) for one in reply.keys] == [
            (reply.fingerprint, 4, 4),
            (fingerprint(OLD), 4, 0),
        ]
        await until("the former key is gone", lambda: {len(keys_of(one)) for one in everybody} == {1})
        listed = await us.running()[0].call(OPERATOR_KEYRING_LIST)
        assert [(one.fingerprint, one.held_by) for one in listed.keys] == [(reply.fingerprint, 4)]
        assert {(one.options.data_dir / FILE).stat().st_mode & 0o777 for one in everybody} == {0o600}

    run_federation(tmp_path, story, keys=(OLD,))


def test_a_rotation_without_grace_is_done_when_it_is_answered(tmp_path: Path) -> None:
    async def story(eu: Region, us: Region) -> None:
        here = await eu.leader()
        reply = await here.call(OPERATOR_KEYRING_ROTATE, KeyringRotateRequest(key=show_key(NEW), grace_s=0))
        assert [step.operation for step in reply.steps] == ["install", "use", "remove"]
        assert reply.removal_in_s is None
        assert {keys_of(one) for one in (*eu.running(), *us.running())} == {(NEW,)}

    run_federation(tmp_path, story, keys=(OLD,))


def test_a_key_is_not_used_before_every_member_has_it_and_the_one_in_use_is_not_removed(tmp_path: Path) -> None:
    async def story(eu: Region, us: Region) -> None:
        here, lone = await eu.leader(), us.running()[0]
        await lone.call(GOSSIP_KEYS, KeyOrder(operation="install", key=NEW))

        with pytest.raises(Conflict, match=r"cannot be used yet: s1\.eu \(does not have it\), s2\.us"):
            await change(here, "use", fingerprint(NEW))
        with pytest.raises(Conflict, match=r"is in use: s1\.eu \(seals with it\)"):
            await change(here, "remove", show_key(OLD))
        with pytest.raises(BadKey, match="no member has a key '0123456789abcdef'"):
            await change(here, "remove", "0123456789abcdef")
        with pytest.raises(BadKey, match="not base64"):
            await change(here, "install", "$")
        assert keys_of(here) == (OLD,)

    run_federation(tmp_path, story, keys=(OLD,))


def test_who_does_not_answer_is_named_and_the_steps_are_finished_by_hand(tmp_path: Path) -> None:
    async def story(eu: Region, us: Region) -> None:
        here, away = await eu.leader(), us.running()[2]
        cut_off(away, here)

        with pytest.raises(Conflict, match=r"stopped at 'install': s3\.us .*nobody seals with it yet"):
            await here.call(OPERATOR_KEYRING_ROTATE, KeyringRotateRequest(key=show_key(NEW), grace_s=0))
        with pytest.raises(Conflict, match=r"cannot be used yet: s3\.us"):
            await change(here, "use", show_key(NEW))
        listed = await here.call(OPERATOR_KEYRING_LIST)
        assert [(one.name, "cannot reach" in one.error) for one in listed.steps[0].failures] == [("s3.us", True)]
        assert [(one.held_by, listed.members) for one in listed.keys] == [(3, 4), (3, 4)]

        other = us.running()[0]
        for operation in ("install", "use"):
            assert not (await change(other, operation, show_key(NEW))).steps[0].failures
        assert not (await change(other, "remove", fingerprint(OLD))).steps[0].failures
        assert {keys_of(one) for one in (*eu.running(), *us.running())} == {(NEW,)}

    run_federation(tmp_path, story, keys=(OLD,))


def test_who_was_away_while_keys_were_changed_gets_the_new_one_during_the_grace(tmp_path: Path) -> None:
    async def story(eu: Region, us: Region) -> None:
        here, away = await eu.leader(), (await us.followers())[0]
        await us.stop(away)
        name = f"{away.name}.us"
        await until(
            "it is dead",
            lambda: not next(one for one in here.server.directory.servers("us") if one.name == name).is_alive,
            within_s=20,
        )
        await here.call(OPERATOR_KEYRING_ROTATE, KeyringRotateRequest(key=show_key(NEW), grace_s=3600))
        assert keys_of(here) == (NEW, OLD)

        back = await us.restart(away)

        await until("it has the new key", lambda: keys_of(back)[0] == NEW, within_s=15)

    run_federation(tmp_path, story, keys=(OLD,), profile=QUICK)


def test_a_rotation_that_waits_gives_way_to_a_later_one_begun_elsewhere(tmp_path: Path) -> None:
    async def story(eu: Region, us: Region) -> None:
        here, there, everybody = await eu.leader(), us.running()[0], (*eu.running(), *us.running())
        first = await here.call(OPERATOR_KEYRING_ROTATE, KeyringRotateRequest(grace_s=3600))
        second = await there.call(OPERATOR_KEYRING_ROTATE, KeyringRotateRequest(key=show_key(NEW), grace_s=3600))

        assert here.server.wan is not None
        here.server.wan.keys.member_came()  # what makes it look after its rotation
        await until("it gives way", lambda: here.said("gossip_rotation_overtaken"))

        assert next(one.fingerprint for one in second.keys) == fingerprint(NEW)
        assert {keys_of(one)[0] for one in everybody} == {NEW}
        assert {len(keys_of(one)) for one in everybody} == {3}
        assert first.fingerprint in {fingerprint(key) for key in keys_of(here)}

    run_federation(tmp_path, story, keys=(OLD,))


def test_keys_are_in_no_log_and_in_no_answer(tmp_path: Path) -> None:
    async def story(eu: Region, us: Region) -> None:
        here, everybody = await eu.leader(), (*eu.running(), *us.running())
        replies = [await change(here, "install", show_key(NEW)), await change(here, "use", show_key(NEW))]
        shown = [str(reply) for reply in replies] + [str(await one.call(AGENT_SELF)) for one in everybody]
        for one in everybody:
            one.said("")
            assert any(event.name == "gossip_key" for event in one._said)
            shown += [f"{event.name} {dict(event.fields)}" for event in one._said]
        for key in (OLD, NEW):
            for form in (show_key(key), key.hex(), repr(key)):
                assert not [line for line in shown if form in line]

    run_federation(tmp_path, story, keys=(OLD,))


def test_after_a_restart_the_file_counts_and_a_setting_that_differs_is_warned_of(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        member = await region.add("s1", bootstrap_expect=1, gossip=GossipOptions(profile=LOCAL, keys=(OLD,)))
        await region.leader()
        await member.call(OPERATOR_KEYRING_ROTATE, KeyringRotateRequest(key=show_key(NEW), grace_s=0))
        await region.stop(member)

        again = await region.restart(member)

        assert keys_of(again) == (NEW,)
        (warning,) = again.said("gossip_key_overruled")
        assert show_key(NEW) not in str(warning)

    run_region(tmp_path, scenario)


def test_a_pool_in_the_clear_has_no_keys_to_change(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        member = await region.add("s1", bootstrap_expect=1, gossip=GossipOptions(profile=LOCAL))
        with pytest.raises(BadKey, match="gossip is not sealed here"):
            await member.call(OPERATOR_KEYRING_LIST)
        alone = await region.add("s2", gossip=None)
        with pytest.raises(Unavailable, match="takes no part in gossip"):
            await alone.call(OPERATOR_KEYRING_LIST)

    run_region(tmp_path, scenario)


def test_keys_go_neither_to_nor_from_an_address_where_others_may_listen(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        open_to_all = await region.add(
            "s1", bootstrap_expect=1, rpc_host="0.0.0.0", gossip=GossipOptions(profile=LOCAL, keys=(OLD,))
        )
        with pytest.raises(Unavailable, match="neither sealed by TLS nor on loopback"):
            await open_to_all.call(GOSSIP_KEYS, KeyOrder(operation="install", key=NEW))
        here = await region.add("s2", join=(), bootstrap_expect=2, gossip=GossipOptions(profile=LOCAL, keys=(OLD,)))
        assert here.server.wan is not None
        keys = here.server.wan.keys
        keys._members_up = lambda: ["s9.us"]
        tags = {"role": "fedsched", "region": "us", "id": "x", "rpc_addr": "192.0.2.1", "port": "4647"}
        here.server.directory.member_seen(ServerMember(name="s9.us", tags=tags))
        listed = await here.call(OPERATOR_KEYRING_LIST)
        assert [one.error for one in listed.steps[0].failures] == [
            "keys are not sent to 192.0.2.1:4647 in the clear: there is no TLS"
        ]

    run_region(tmp_path, scenario)

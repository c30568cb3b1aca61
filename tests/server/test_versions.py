"""Newer commands are turned on once every server knows them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from fedsched.raft.membership import ServerInfo
from fedsched.server import joining
from fedsched.server import server as server_module
from fedsched.server.leader import versions
from fedsched.server.leader.versions import VersionService, version_to_enable
from fedsched.state.tables import meta
from tests.server.region import Member, Region, run_region, until


@pytest.mark.parametrize(
    ("enabled", "known", "wanted"),
    [
        (1, [3, 2, 3], 2),
        (2, [3, 2, 3], None),
        (1, [3, None, 3], None),
        (1, [], None),
        (3, [2, 2], None),
    ],
    ids=["what all share", "no more than is enabled", "somebody did not say", "nobody", "never back"],
)
def test_the_newest_version_that_all_know_is_enabled(enabled: int, known: list[int | None], wanted: int | None) -> None:
    assert version_to_enable(enabled, known) == wanted


def noted_answers(monkeypatch: pytest.MonkeyPatch) -> list[int | None]:
    """Let servers believe there is a version 2, and note what each server that is asked answers."""
    answers: list[int | None] = []

    class Service(VersionService):
        async def _ask(self, server: ServerInfo) -> int | None:
            answers.append(await super()._ask(server))
            return answers[-1]

    monkeypatch.setattr(versions, "ASK_EVERY_S", 0.02)
    monkeypatch.setattr(meta, "COMMAND_VERSION", 2)
    monkeypatch.setattr(server_module, "VersionService", partial(Service, newest=2))
    return answers


def enabled(member: Member) -> int:
    return member.server.machine.store.meta.enabled_version


def test_a_region_enables_what_is_new_only_when_its_last_server_is_up_and_knows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = noted_answers(monkeypatch)

    async def scenario(region: Region) -> None:
        await region.form(3)
        leader, (away, _) = await region.leader(), await region.followers()
        await until("two rounds have passed", lambda: len(answers) >= 4)
        assert {enabled(member) for member in region.running()} == {1}

        await region.stop(away)
        monkeypatch.setattr(joining, "COMMAND_VERSION", 2)  # the others are upgraded
        answers.clear()
        await until("two more rounds have passed", lambda: len(answers) >= 4)
        assert {None, 2} <= set(answers)
        assert enabled(leader) == 1

        await region.restart(away)

        await until("all have it enabled", lambda: {enabled(member) for member in region.running()} == {2})
        assert [event["version"] for event in leader.said("commands_enabled")] == [2]
        names = {member.server.machine.store.meta.cluster_id for member in region.running()}
        assert names == {leader.server.raft.transport.cluster_id}

    run_region(tmp_path, scenario)

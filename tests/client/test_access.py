"""What servers ask of a client beside files and terminals: restarts, signals, checks, figures, clean-up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from fedsched.drivers.driver import Capabilities
from fedsched.model.alloc import DesiredStatus
from fedsched.model.check import CheckResult
from fedsched.model.errors import BadRequest, NotFound
from fedsched.rpc.caller import LocalCaller
from fedsched.rpc.method import RunsAt, all_methods
from fedsched.rpc.methods.node import NodeRequest
from fedsched.rpc.methods.node_calls import (
    ALLOC_CHECKS,
    ALLOC_GC,
    ALLOC_RESTART,
    ALLOC_SIGNAL,
    ALLOC_STATS,
    NODE_GC,
    NODE_STATS,
    AllocChecksRequest,
    AllocGcRequest,
    AllocRestartRequest,
    AllocSignalRequest,
    AllocStatsRequest,
)
from tests.builders import an_id
from tests.client.access_kit import FakeClient, with_client

ALLOC = an_id(1)


async def ask(caller: LocalCaller, method: Any, request: Any) -> Any:
    return (await caller.call(method, request))[0]


def test_everything_that_runs_at_a_node_is_served(tmp_path: Path) -> None:
    async def story(client: FakeClient, caller: LocalCaller) -> None:
        served = set(caller._server._handlers)
        assert served == {method for method in all_methods() if method.runs_at is RunsAt.NODE}

    with_client(tmp_path, story)


def test_a_restart_is_handed_to_the_runner_or_refused(tmp_path: Path) -> None:
    async def story(client: FakeClient, caller: LocalCaller) -> None:
        runner = client.add(tasks=("web", "db"))
        await ask(caller, ALLOC_RESTART, AllocRestartRequest(alloc_id=ALLOC))
        await ask(caller, ALLOC_RESTART, AllocRestartRequest(alloc_id=ALLOC, task="db"))
        await ask(caller, ALLOC_RESTART, AllocRestartRequest(alloc_id=ALLOC, all_tasks=True))
        assert runner.restarts == [("", False), ("db", False), ("", True)]

        with pytest.raises(BadRequest, match="task name cannot be set when restarting all tasks"):
            await ask(caller, ALLOC_RESTART, AllocRestartRequest(alloc_id=ALLOC, task="db", all_tasks=True))
        with pytest.raises(NotFound, match="Could not find task runner for task: cache"):
            await ask(caller, ALLOC_RESTART, AllocRestartRequest(alloc_id=ALLOC, task="cache"))
        stopped = structs.replace(runner.context.alloc, desired_status=DesiredStatus.STOP)
        runner.context.alloc = stopped
        with pytest.raises(BadRequest, match="should not run"):
            await ask(caller, ALLOC_RESTART, AllocRestartRequest(alloc_id=ALLOC))

    with_client(tmp_path, story)


@pytest.mark.parametrize(("asked", "sent"), [("SIGHUP", "SIGHUP"), ("usr1", "SIGUSR1"), ("", "SIGINT")])
def test_signals_have_several_spellings(tmp_path: Path, asked: str, sent: str) -> None:
    async def story(client: FakeClient, caller: LocalCaller) -> None:
        runner = client.add()
        await ask(caller, ALLOC_SIGNAL, AllocSignalRequest(alloc_id=ALLOC, signal=asked))
        assert runner.signals == [("web", sent)]

    with_client(tmp_path, story)


def test_a_signal_that_cannot_be_sent_is_refused(tmp_path: Path) -> None:
    async def story(client: FakeClient, caller: LocalCaller) -> None:
        runner = client.add()
        client.add(2, is_running=False)
        client.node = structs.replace(client.node, attributes={"os.signals": "SIGHUP,SIGINT"})
        for fields, words in (
            ({"signal": "SIGNOPE"}, "unknown signal"),
            ({"signal": "SIGUSR1"}, r"unknown signal 'SIGUSR1' .*SIGHUP, SIGINT"),
            ({"alloc_id": an_id(2)}, "no such task is running"),
            ({"alloc_id": an_id(2), "task": "web"}, "no such task is running"),
        ):
            with pytest.raises(BadRequest, match=words):
                await ask(caller, ALLOC_SIGNAL, AllocSignalRequest(**{"alloc_id": ALLOC, **fields}))
        with pytest.raises(NotFound):
            await ask(caller, ALLOC_SIGNAL, AllocSignalRequest(alloc_id=ALLOC, task="db"))
        client.driver.capabilities = Capabilities(send_signals=False)
        with pytest.raises(BadRequest, match="sends no signals"):
            await ask(caller, ALLOC_SIGNAL, AllocSignalRequest(alloc_id=ALLOC))
        assert runner.signals == []

    with_client(tmp_path, story)


def test_checks_are_those_of_the_allocation(tmp_path: Path) -> None:
    async def story(client: FakeClient, caller: LocalCaller) -> None:
        client.add()
        client.checks[ALLOC] = {"c": CheckResult(id="c", check="alive")}

        assert (await ask(caller, ALLOC_CHECKS, AllocChecksRequest(alloc_id=ALLOC))).checks == client.checks[ALLOC]
        with pytest.raises(NotFound):
            await ask(caller, ALLOC_CHECKS, AllocChecksRequest(alloc_id=an_id(9)))

    with_client(tmp_path, story)


def test_figures_of_what_does_not_run_are_zero(tmp_path: Path) -> None:
    async def story(client: FakeClient, caller: LocalCaller) -> None:
        client.add(is_running=False)
        client.add(2)

        for request in (AllocStatsRequest(alloc_id=ALLOC), AllocStatsRequest(alloc_id=an_id(2), task="none")):
            usage = (await ask(caller, ALLOC_STATS, request)).usage
            assert usage.tasks == {}
            assert usage.resource_usage.memory_stats.rss == 0

    with_client(tmp_path, story)


def test_another_node_is_not_answered_for(tmp_path: Path) -> None:
    async def story(client: FakeClient, caller: LocalCaller) -> None:
        for method in (NODE_STATS, NODE_GC):
            with pytest.raises(NotFound, match="this is node"):
                await ask(caller, method, NodeRequest(node_id=an_id(9)))
        assert (await ask(caller, NODE_GC, NodeRequest(node_id=client.node.id))).collected == 3
        assert (await ask(caller, NODE_STATS, NodeRequest(node_id=client.node.id))).stats.uptime > 0

    with_client(tmp_path, story)


def test_only_what_is_over_is_removed(tmp_path: Path) -> None:
    async def story(client: FakeClient, caller: LocalCaller) -> None:
        client.add()
        assert (await ask(caller, ALLOC_GC, AllocGcRequest(alloc_id=ALLOC))).collected == 1

        async def nothing(alloc_id: str = "") -> int:
            return 0

        client.collect_garbage = nothing  # type: ignore[method-assign]
        with pytest.raises(BadRequest, match="not eligible for GC"):
            await ask(caller, ALLOC_GC, AllocGcRequest(alloc_id=ALLOC))
        with pytest.raises(NotFound):
            await ask(caller, ALLOC_GC, AllocGcRequest(alloc_id=an_id(9)))

    with_client(tmp_path, story)

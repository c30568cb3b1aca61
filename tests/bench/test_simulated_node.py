"""One simulated node, fed by hand: what it reports, how often, and what it remembers and forgets."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import trio
from msgspec import structs

from fedsched.bench import simulated_node
from fedsched.bench.simulated_node import ROW, SimulatedNode, Tally, Timers
from fedsched.bench.simulated_nodes import Shape, make_nodes
from fedsched.bench.simulated_scripts import Scripts
from fedsched.codec import from_bytes, to_bytes_sparse
from fedsched.model.job import Job
from fedsched.model.node import NodeStatus
from fedsched.rpc.methods import node as node_methods
from fedsched.rpc.methods.node_frames import NodeReport, WatchFrame, WatchOrigin
from fedsched.rpc.node_watch import KNOWN_MAX, WATCH_DTYPE
from tests.bench.simulated_kit import NEVER_AGAIN, QUICK, a_batch, a_service, by_hand
from tests.builders import a_group, a_job, a_task
from tests.state.worlds import ids

pytestmark = pytest.mark.usefixtures("impatience")


class Paper:
    """A stream that keeps what is written."""

    def __init__(self) -> None:
        self.items: list[NodeReport] = []
        self.is_full = False

    def try_send(self, item: bytes) -> bool:
        if not self.is_full:
            self.items.append(from_bytes(item, NodeReport))
        return not self.is_full


def a_node_by_hand() -> tuple[SimulatedNode, Paper, Tally, Timers]:
    tally, timers, paper = Tally(), Timers(), Paper()
    (record,) = make_nodes(Shape(count=1))
    node = SimulatedNode(record, Scripts(), tally, timers, lambda: None)
    node._stream = paper  # type: ignore[assignment]
    return node, paper, tally, timers


def rows(*numbers: int, desired: int = 1, status: int = 1) -> bytes:
    found = np.zeros(len(numbers), dtype=WATCH_DTYPE)
    words = np.frombuffer(ids(list(numbers)), dtype=">u8").reshape(-1, 2)
    found["id"], found["desired"], found["client_status"] = words, desired, status
    return found.tobytes()


def test_a_row_is_read_as_it_is_written() -> None:
    assert ROW.size == WATCH_DTYPE.itemsize
    found = np.zeros(1, dtype=WATCH_DTYPE)
    found["origin"], found["desired"], found["client_status"], found["health"] = -7, 3, 5, 2
    found["name_index"] = found["flags"] = found["create_index"] = found["spare"] = 99
    assert ROW.unpack(found.tobytes())[1:] == (-7, 3, 5, 2)


def test_reports_are_repeated_until_they_are_confirmed() -> None:
    async def story() -> None:
        node, paper, tally, _ = a_node_by_hand()
        node.take(WatchFrame(rows=rows(1, 2)))
        node.report(trio.current_time())
        node.report(trio.current_time())
        assert [(one.number, one.ids, one.statuses) for one in paper.items] == [(1, ids([1, 2]), b"\2\2")]
        node.take(WatchFrame(rows=rows(3)))
        node.report(trio.current_time())
        assert len(paper.items) == 1  # the first is still on its way
        await trio.sleep(simulated_node.AGAIN_S)
        node.report(trio.current_time())
        assert (paper.items[1].number, paper.items[1].ids) == (2, ids([1, 2, 3]))
        node.take(WatchFrame(written=1))
        assert tally.running == 0
        node.take(WatchFrame(written=2))
        assert tally.running == 3
        node.report(trio.current_time())
        assert len(paper.items) == 2

    by_hand(story)


def test_a_report_that_finds_no_room_waits() -> None:
    async def story() -> None:
        node, paper, _, _ = a_node_by_hand()
        paper.is_full = True
        node.take(WatchFrame(rows=rows(1)))
        node.report(trio.current_time())
        paper.is_full = False
        assert node.report_at < simulated_node.AGAIN_S
        node.report(trio.current_time())
        assert [one.number for one in paper.items] == [1]

    by_hand(story)


def test_long_reports_come_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simulated_node, "REPORT_MAX", 2)

    async def story() -> None:
        node, paper, tally, _ = a_node_by_hand()
        node.take(WatchFrame(rows=rows(1, 2, 3)))
        node.report(trio.current_time())
        node.take(WatchFrame(written=1))
        node.report(trio.current_time())
        node.take(WatchFrame(written=2))
        assert [one.ids for one in paper.items] == [ids([1, 2]), ids([3])]
        assert tally.running == 3

    by_hand(story)


def test_servers_set_the_pace_of_reports() -> None:
    async def story() -> None:
        node, _, _, _ = a_node_by_hand()
        node.take(WatchFrame(pace_ms=1_000, rows=rows(1)))
        assert node.report_at == trio.current_time() + 1.0

    by_hand(story)


def test_what_was_stopped_before_it_arrived_is_complete_and_what_has_ended_is_left_alone() -> None:
    async def story() -> None:
        node, paper, tally, _ = a_node_by_hand()
        node.take(WatchFrame(rows=rows(1, desired=2) + rows(2, desired=2, status=3) + rows(3, status=4)))
        node.report(trio.current_time())
        assert [(one.ids, one.statuses) for one in paper.items] == [(ids([1]), b"\3")]
        assert (tally.received, tally.stopped) == (0, 1)

    by_hand(story)


def encoded(job: Job, ref: int = 0, **fields: Any) -> dict[str, Any]:
    """The parts of a frame that say what allocations of a job are."""
    origin = WatchOrigin(ref=ref, job_id=job.id, job_create_index=job.create_index, group="group", **fields)
    return {"jobs": (to_bytes_sparse(job),), "origins": (to_bytes_sparse(origin),)}


def says(node: SimulatedNode, paper: Paper) -> list[tuple[bytes, bytes]]:
    """What the node reports now, all of which is confirmed."""
    before = len(paper.items)
    node.report(trio.current_time())
    node.take(WatchFrame(written=node._number))
    return [(one.statuses, one.healths) for one in paper.items[before:]]


def test_starts_that_are_held_up_and_stops_that_take_time() -> None:
    async def story() -> None:
        node, paper, tally, timers = a_node_by_hand()
        job = a_batch("slow", start_block_for="2s", run_for="1h", kill_after="3s")
        node.take(WatchFrame(rows=rows(1, 2), **encoded(job)))
        assert says(node, paper) == []
        node.take(WatchFrame(rows=rows(2, desired=2)))
        assert says(node, paper) == [(b"\3", b"")]  # stopped before it began
        await trio.sleep(2)
        timers.run(trio.current_time())
        assert says(node, paper) == [(b"\2", b"")]
        node.take(WatchFrame(rows=rows(1, desired=2)))
        node.take(WatchFrame(rows=rows(1, desired=2)))
        assert says(node, paper) == []
        await trio.sleep(3)
        timers.run(trio.current_time())
        assert says(node, paper) == [(b"\3", b"")]
        await trio.sleep(3600)
        timers.run(trio.current_time())
        assert says(node, paper) == []
        assert (tally.received, tally.running, tally.stopped, tally.complete, len(timers)) == (2, 1, 2, 2, 0)

    by_hand(story)


def test_health_is_told_once_it_is_known() -> None:
    async def story() -> None:
        node, paper, tally, timers = a_node_by_hand()
        deployed = {"deployment_id": "d"}
        node.take(
            WatchFrame(
                rows=rows(1), **encoded(a_service(update=structs.replace(QUICK, min_healthy_time_s=4.0)), **deployed)
            )
        )
        assert says(node, paper) == [(b"\2", b"")]
        await trio.sleep(4)
        timers.run(trio.current_time())
        assert says(node, paper) == [(b"\2", b"\1")]
        at_once = a_service("now", update=structs.replace(QUICK, min_healthy_time_s=0.0))
        broken = a_task(config={"start_error": "no"}, restart_policy=NEVER_AGAIN)
        never = a_job("bad", groups=[a_group(tasks=[broken], update=QUICK)])
        node.take(WatchFrame(rows=rows(2), **encoded(at_once, **deployed)))
        assert says(node, paper) == [(b"\2", b"\1")]
        node.take(WatchFrame(rows=rows(3), **encoded(never, **deployed)))
        assert says(node, paper) == [(b"\4", b"\2")]
        assert (tally.running, tally.failed) == (2, 1)

    by_hand(story)


def test_a_node_that_is_not_ready_tells_what_it_runs_and_asks_again_soon() -> None:
    async def story() -> None:
        node, paper, _, _ = a_node_by_hand()
        node.take(WatchFrame(rows=rows(1)))
        says(node, paper)
        replies = [NodeStatus.INITIALIZING, NodeStatus.READY]

        class Server:
            async def call(self, method: Any, request: Any) -> tuple[node_methods.NodeUpdateReply, None]:
                return node_methods.NodeUpdateReply(heartbeat_ttl_s=20.0, status=replies.pop(0)), None

        await node.beat(Server())  # type: ignore[arg-type]
        assert node.beat_at == trio.current_time() + simulated_node.SOON_S
        assert says(node, paper) == [(b"\2", b"")]
        await node.beat(Server())  # type: ignore[arg-type]
        assert node.beat_at == trio.current_time() + 10.0
        assert says(node, paper) == []
        node.fail()
        replies.append(NodeStatus.READY)
        await node.beat(Server())  # type: ignore[arg-type]
        assert node.beat_at == math.inf

    by_hand(story)


def test_what_servers_forget_is_forgotten() -> None:
    async def story() -> None:
        node, _, tally, _ = a_node_by_hand()
        node.take(WatchFrame(rows=rows(1, 2, 3)))
        node.take(WatchFrame(removed=ids([1])))
        assert len(node._states) == 2
        node.take(WatchFrame(is_whole=True, rows=rows(3)))
        assert (len(node._states), tally.received) == (1, 3)

    by_hand(story)


def test_a_node_that_was_missed_tells_all_that_still_runs_once() -> None:
    async def story() -> None:
        node, paper, tally, _ = a_node_by_hand()
        node.take(WatchFrame(rows=rows(1, 2)))
        node.report(trio.current_time())
        node.take(WatchFrame(written=1))
        node._say_all()
        node.report(trio.current_time())
        node.take(WatchFrame(written=2))
        assert (paper.items[1].ids, tally.running) == (ids([1, 2]), 2)

    by_hand(story)


def test_a_node_remembers_no_more_origins_than_servers_do() -> None:
    async def story() -> None:
        node, _, _, _ = a_node_by_hand()
        origins = tuple(to_bytes_sparse(WatchOrigin(ref=ref)) for ref in range(KNOWN_MAX + 5))
        node.take(WatchFrame(origins=origins))
        assert list(node._scripts) == list(range(5, KNOWN_MAX + 5))

    by_hand(story)

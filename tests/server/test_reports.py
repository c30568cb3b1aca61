"""What clients report, on its way to the leader: gathered, bounded, confirmed when written, and not before."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import MockClock

from fedsched.model.errors import BadRequest, TooLarge, Unavailable
from fedsched.model.ids import uuid_bytes
from fedsched.rpc.methods.node import NodeReportsReply, NodeReportsRequest
from fedsched.rpc.methods.node_frames import NodeReport
from fedsched.server import reports as reports_module
from fedsched.server.leader.client_updates_core import BATCH_BYTES, BATCH_IDS, Report, reports_in
from fedsched.server.pace import SHORTEST_S, SOON_S
from fedsched.server.reports import Reports, request_of
from fedsched.state.fields import pack
from fedsched.telemetry.log import Hub
from tests.builders import an_id
from tests.server.leader.test_client_updates_core import a_report
from tests.state.worlds import ids


class Leader:
    """Takes reports; `hold` keeps it from answering."""

    def __init__(self) -> None:
        self.requests: list[tuple[float, NodeReportsRequest]] = []
        self.refused: tuple[str, ...] = ()
        self.failure: Unavailable | None = None
        self.hold: trio.Event | None = None

    async def __call__(self, request: NodeReportsRequest) -> NodeReportsReply:
        self.requests.append((trio.current_time(), request))
        if self.hold is not None:
            await self.hold.wait()
        if self.failure is not None:
            raise self.failure
        return NodeReportsReply(refused=b"".join(map(uuid_bytes, self.refused)))

    @property
    def counts(self) -> list[int]:
        return [len(request.statuses) for _, request in self.requests]


class Desk:
    """Reports under test, and the numbers that were confirmed."""

    def __init__(self) -> None:
        self.leader = Leader()
        hub = Hub()
        self.events = hub.subscribe("warn", capacity=10)
        self.reports = Reports(self.leader, hub.logger("test"))
        self.confirmed: list[tuple[int, int]] = []

    async def say(self, node: int, number: int, numbers: list[int], **fields: Any) -> None:
        said = NodeReport(number=number, ids=ids(numbers), statuses=b"\2" * len(numbers), **fields)
        await self.reports.take(an_id(node), said, lambda one: self.confirmed.append((node, one)))


def run(story: Callable[[Desk], Awaitable[None]]) -> None:
    async def main() -> None:
        desk = Desk()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(desk.reports.run)
            await story(desk)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=MockClock(autojump_threshold=0))


def test_reports_of_one_moment_are_one_call_and_each_is_confirmed() -> None:
    async def story(desk: Desk) -> None:
        await desk.say(1, 1, [1, 2])
        await desk.say(2, 7, [3])
        await trio.sleep(1)
        assert [at for at, _ in desk.leader.requests] == [SOON_S]
        assert reports_in_of(desk.leader.requests[0][1]) == [a_report([1, 2]), a_report([3], node=2)]
        assert desk.confirmed == [(1, 1), (2, 7)]

    run(story)


def test_nothing_is_confirmed_before_the_leader_has_written_it() -> None:
    async def story(desk: Desk) -> None:
        desk.leader.hold = trio.Event()
        await desk.say(1, 1, [1])
        await trio.sleep(60)
        assert (desk.leader.counts, desk.confirmed) == ([1], [])
        desk.leader.hold.set()
        await trio.sleep(1)
        assert desk.confirmed == [(1, 1)]

    run(story)


def test_reports_one_after_the_other_wait_for_company() -> None:
    async def story(desk: Desk) -> None:
        await desk.say(1, 1, [1])
        await trio.sleep(0.01)
        await desk.say(1, 2, [2])
        await trio.sleep(0.01)
        await desk.say(1, 3, [3])
        await trio.sleep(1)
        assert [at for at, _ in desk.leader.requests] == [SOON_S, pytest.approx(SOON_S + SHORTEST_S)]
        assert desk.leader.counts == [1, 2]

    run(story)


def test_a_full_batch_does_not_wait_and_what_is_too_much_for_one_call_is_split() -> None:
    async def story(desk: Desk) -> None:
        for number in (1, 2, 3):
            await desk.say(number, 1, list(range(number * 5000, number * 5000 + 5000)))
        await trio.sleep(1)
        assert desk.leader.counts == [5000, 5000, 5000]
        assert desk.leader.requests[0][0] == 0.0
        details, sizes = pack([bytes(BATCH_BYTES // 2 + 1)])
        for number in (1, 2):
            await desk.say(number, 2, [number], client=details, client_sizes=sizes)
        await trio.sleep(1)
        assert desk.leader.counts[3:] == [1, 1]

    run(story)


def test_a_refused_node_is_not_confirmed_and_the_others_are() -> None:
    async def story(desk: Desk) -> None:
        desk.leader.refused = (an_id(2),)
        await desk.say(1, 1, [1])
        await desk.say(2, 1, [2])
        await trio.sleep(1)
        assert desk.confirmed == [(1, 1)]

    run(story)


def test_what_no_leader_took_is_not_confirmed_and_said_in_the_log() -> None:
    async def story(desk: Desk) -> None:
        desk.leader.failure = Unavailable("no leader")
        await desk.say(1, 1, [1])
        await trio.sleep(1)
        desk.leader.failure = None
        await desk.say(1, 2, [1])
        await trio.sleep(1)
        assert desk.confirmed == [(1, 2)]
        assert [event.name for event in desk.events.take()] == ["reports_not_passed_on"]

    run(story)


@pytest.mark.parametrize(("limit", "value"), [("PENDING_IDS_MAX", 10), ("PENDING_BYTES_MAX", 10)])
def test_everybody_who_brings_more_than_there_is_room_for_waits_and_gets_through(
    limit: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reports_module, limit, value)

    async def story(desk: Desk) -> None:
        done = []

        async def bring(node: int) -> None:
            details, sizes = pack([b"x"] * 6)
            await desk.say(node, 1, list(range(6 * node, 6 * node + 6)), client=details, client_sizes=sizes)
            done.append(node)

        desk.leader.hold = trio.Event()
        await desk.say(9, 1, [1])
        await trio.sleep(1)  # one call is under way
        async with trio.open_nursery() as nursery:
            for node in (1, 2, 3):
                nursery.start_soon(bring, node)
            await trio.sleep(60)
            assert len(done) == 1
            desk.leader.hold.set()
        await trio.sleep(1)
        assert sorted(desk.confirmed) == [(1, 1), (2, 1), (3, 1), (9, 1)]

    run(story)


def test_reports_about_nothing_take_room_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reports_module, "PENDING_IDS_MAX", 3)

    async def story(desk: Desk) -> None:
        desk.leader.hold = trio.Event()
        await desk.say(9, 1, [])
        await trio.sleep(1)
        for number in (1, 2, 3):
            await desk.say(1, number, [])
        with trio.move_on_after(5) as waiting:
            await desk.say(1, 4, [])
        assert waiting.cancelled_caught

    run(story)


@pytest.mark.parametrize(
    ("said", "error", "words"),
    [
        (NodeReport(ids=ids([1]), statuses=b"\2"), BadRequest, "has no number"),
        (NodeReport(number=1, ids=b"short", statuses=b"\2"), BadRequest, "do not fit together"),
        (NodeReport(number=1, ids=ids([1]), statuses=b"\x63"), BadRequest, "do not fit together"),
        (NodeReport(number=1, ids=ids([1]), statuses=b"\2", healths=b"\7"), BadRequest, "do not fit together"),
        (NodeReport(number=1, ids=ids([1]), statuses=b"\2", client=b"stray"), BadRequest, "another length"),
        (NodeReport(number=1, ids=ids([1]), statuses=b"\2", client_sizes=b"\1\0\0\0"), BadRequest, "another length"),
        (NodeReport(number=1, ids=bytes(16 * 8193), statuses=b"\2" * (BATCH_IDS + 1)), TooLarge, "at once"),
    ],
)
def test_a_report_out_of_shape_is_refused(said: NodeReport, error: type[Exception], words: str) -> None:
    async def story(desk: Desk) -> None:
        with pytest.raises(error, match=words):
            await desk.reports.take(an_id(1), said, lambda _: None)
        await trio.sleep(1)
        assert desk.leader.requests == []

    run(story)


def reports_in_of(request: NodeReportsRequest) -> list[Report]:
    columns = Report("", request.ids, request.statuses, request.healths, request.client, request.client_sizes)
    return reports_in(request.nodes, request.counts, columns)


@st.composite
def some_reports(draw: st.DrawFn) -> list[Report]:
    has_healths, has_details = draw(st.booleans()), draw(st.booleans())
    found = []
    for _ in range(draw(st.integers(0, 5))):
        count = draw(st.integers(0, 4))
        client, sizes = pack(draw(st.lists(st.binary(max_size=5), min_size=count, max_size=count)))
        found.append(
            Report(
                an_id(draw(st.integers(1, 50))),
                draw(st.binary(min_size=16 * count, max_size=16 * count)),
                bytes(draw(st.lists(st.integers(1, 6), min_size=count, max_size=count))),
                bytes(draw(st.lists(st.integers(0, 2), min_size=count, max_size=count))) if has_healths else b"",
                client if has_details else b"",
                sizes if has_details else b"",
            )
        )
    return found


@given(some_reports())
def test_reports_put_together_come_apart_again(reports: list[Report]) -> None:
    assert reports_in_of(request_of(reports)) == reports


def test_reports_with_and_without_details_come_apart_as_saying_nothing() -> None:
    client, sizes = pack([b"abc"])
    bare, full = a_report([1]), a_report([2], node=2, healths=b"\1", client=client, client_sizes=sizes)
    found = reports_in_of(request_of([bare, full]))
    assert found == [a_report([1], healths=b"\0", client_sizes=bytes(4)), full]


@pytest.mark.parametrize(
    "fields", [{"counts": b"\1\0\0"}, {"counts": b"\2\0\0\0"}, {"nodes": b"short"}, {"statuses": b"\2\2"}]
)
def test_gathered_reports_that_do_not_fit_together_are_refused(fields: dict[str, bytes]) -> None:
    from msgspec import structs

    with pytest.raises(BadRequest):
        reports_in_of(structs.replace(request_of([a_report([1])]), **fields))

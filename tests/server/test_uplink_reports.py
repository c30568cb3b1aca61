"""What a node's client reports: confirmed once it is written, at the pace servers set, or refused with the reason."""

from __future__ import annotations

import pytest
import trio

from fedsched.codec import CodecError, to_bytes_sparse
from fedsched.model.errors import BadRequest, Unavailable
from fedsched.model.ids import uuid_bytes
from fedsched.rpc.methods.node_frames import NodeReport
from fedsched.server.duties import no_duties
from fedsched.server.leader.client_updates_core import Report
from fedsched.server.pace import CLIENTS_BEHIND_MS, CLIENTS_MS
from fedsched.server.uplinks import ACK_S
from fedsched.state.store import Store
from tests.builders import a_job, an_id
from tests.server.uplink_kit import Site, run, settle
from tests.state.worlds import ids


def test_that_a_report_is_written_is_told_alone_after_a_moment() -> None:
    async def story(site: Site) -> None:
        site.place([1], [0])
        client = await site.join()
        client.frames()
        await client.say(1, [1])
        await settle()
        assert client.frames() == []
        await trio.sleep(ACK_S + 0.1)
        frame = client.frame()
        assert (frame.written, frame.rows, frame.is_whole) == (1, b"", False)
        assert (
            site.machine.store.allocations.records(site.machine.store.allocations.slots_of_node(0))[
                0
            ].client_status.value
            == "running"
        )
        await trio.sleep(5)
        assert client.frames() == []

    run(story)


def test_that_a_report_is_written_is_told_along_with_other_news() -> None:
    async def story(site: Site) -> None:
        site.place([1], [0])
        client = await site.join()
        client.frames()
        await trio.sleep(1)
        await client.say(1, [1])
        await settle()
        site.place([2], [0])
        await trio.sleep(5)
        frame = client.frame()
        assert (frame.written, len(frame.rows) > 0) == (1, True)

    run(story)


def test_of_several_reports_the_last_is_told() -> None:
    async def story(site: Site) -> None:
        site.place([1, 2], [0, 0])
        client = await site.join()
        client.frames()
        await client.say(1, [1])
        await client.say(2, [2])
        await trio.sleep(5)
        assert client.frame().written == 2

    run(story)


def test_nothing_is_confirmed_before_it_is_written() -> None:
    async def story(site: Site) -> None:
        site.place([1], [0])
        client = await site.join()
        client.frames()
        site.leader_hold = trio.Event()
        await client.say(1, [1])
        await trio.sleep(30)
        site.place([2], [0])
        await trio.sleep(1)
        assert client.frame().written == 0
        site.leader_hold.set()
        await trio.sleep(1)
        assert client.frame().written == 1

    run(story)


def test_a_refused_node_is_not_confirmed() -> None:
    async def story(site: Site) -> None:
        site.place([1], [0])
        client = await site.join()
        client.frames()
        site.refused = uuid_bytes(an_id(1))
        await client.say(1, [1])
        await trio.sleep(5)
        assert client.frames() == []

    run(story)


def test_a_confirmation_waits_for_a_slow_reader() -> None:
    async def story(site: Site) -> None:
        site.place([1], [0])
        client = await site.join(room=1)
        await client.say(1, [1])
        await trio.sleep(5)
        assert client.frame().written == 0
        await trio.sleep(1)
        assert client.frame().written == 1

    run(story)


def test_a_confirmation_for_a_stream_that_is_gone_is_nobodys() -> None:
    async def story(site: Site) -> None:
        site.place([1], [0])
        first = await site.join()
        site.leader_hold = trio.Event()
        await first.say(1, [1])
        await settle()
        second = await site.join()
        site.leader_hold.set()
        await trio.sleep(5)
        assert [frame.written for frame in second.frames()] == [0]

    run(story)


def test_the_pace_of_reports_is_told_when_it_changes() -> None:
    async def story(site: Site) -> None:
        client = await site.join()
        assert client.frame().pace_ms == 0
        while not site.reports.pace.is_behind:
            site.reports.pace.woke(0.5)
        site.place([1], [0])
        await trio.sleep(2)
        assert client.frame().pace_ms == CLIENTS_BEHIND_MS
        for number in range(2, 20):
            site.place([number], [0])
            await trio.sleep(2)
        assert [frame.pace_ms for frame in client.frames() if frame.pace_ms] == [CLIENTS_MS]

    run(story)


@pytest.mark.parametrize(
    ("item", "error"),
    [
        (b"\xff", CodecError),
        (to_bytes_sparse(NodeReport(ids=ids([1]), statuses=b"\x02")), BadRequest),
        (to_bytes_sparse(NodeReport(number=1, ids=b"x", statuses=b"\x02")), BadRequest),
    ],
)
def test_a_report_that_cannot_be_understood_ends_the_stream_and_says_why(item: bytes, error: type[Exception]) -> None:
    async def story(site: Site) -> None:
        client, other = await site.join(1), await site.join(2)
        await client.say_raw(item)
        await trio.sleep(1)
        assert isinstance(client.error, error)
        assert (len(site.uplinks), other.ended.is_set()) == (1, False)

    run(story)


def test_a_client_that_has_nothing_more_to_say_is_still_told_news() -> None:
    async def story(site: Site) -> None:
        client = await site.join()
        client.frames()
        client.say_no_more()
        site.place([1], [0])
        await trio.sleep(1)
        assert (len(client.frames()), client.ended.is_set()) == (1, False)

    run(story)


def test_services_that_do_not_run_say_so() -> None:
    duties = no_duties()

    async def story() -> None:
        with pytest.raises(Unavailable):
            await duties.client_updates.report(Report(node_id=an_id(1), ids=b"", statuses=b""))
        with pytest.raises(Unavailable):
            await duties.client_updates.report_all([])
        with pytest.raises(Unavailable):
            await duties.collect()
        with pytest.raises(Unavailable):
            await duties.dry_run(Store(), a_job(), True)

    trio.run(story)
    with pytest.raises(Unavailable):
        duties.heartbeats.beat(an_id(1))

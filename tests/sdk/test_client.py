from __future__ import annotations

import socket
import threading
from typing import Any

import pytest

from fedsched.codec import CodecError, dumps
from fedsched.model.errors import Busy, Conflict, DeadlineExceeded, FedschedError, NotFound, Unavailable
from fedsched.model.region import RaftConfiguration
from fedsched.raft.errors import DiskPressure
from fedsched.rpc.context import CallMeta, ReplyMeta, RequestID
from fedsched.rpc.errors import with_meta
from fedsched.rpc.method import Empty
from fedsched.rpc.methods.job import JOB_DEREGISTER, JOB_GET, JobDeregisterRequest, JobRequest, JobWriteReply
from fedsched.rpc.methods.raft import RAFT_LIST_PEERS, RAFT_TRANSFER_LEADERSHIP, PeerReply, PeerRequest
from fedsched.rpc.methods.snapshot import SNAPSHOT_RESTORE, SNAPSHOT_SAVE, SnapshotReply
from fedsched.rpc.server_side import CallContext
from fedsched.sdk.client import Client
from fedsched.sdk.connect import connect, open_client
from fedsched.sdk.target import target_of
from fedsched.wire import blocking_link
from tests.verbs.fake_agent import FakeAgent, fake_agent


class OutcomeUnknown(FedschedError):
    """As raft answers when it cannot tell; the client must know it by its code alone."""

    code = "outcome_unknown"
    http_status = 500


def answering(*outcomes: Any) -> Any:
    """Answer one outcome after the other; the last one for ever. Exceptions are raised."""
    left = list(outcomes)

    def answer(request: Any) -> Any:
        outcome = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    return answer


def patient(agent: FakeAgent, patience_s: float = 30.0) -> tuple[Client, list[float]]:
    """A client whose pauses take no time but are noted."""
    target = target_of(agent.address)
    clock = [0.0]
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        clock[0] += seconds

    client = Client(
        target,
        lambda: blocking_link.connect(target.address),
        patience_s=patience_s,
        now=lambda: clock[0],
        sleep=sleep,
    )
    return client, pauses


DONE = JobWriteReply(eval_id="e1", index=9)
STOP = JobDeregisterRequest(job_id="web")


def test_a_call_brings_a_typed_reply_and_what_came_beside_it() -> None:
    with fake_agent({RAFT_LIST_PEERS: answering(RaftConfiguration(index=12))}, index=77) as agent:
        with connect(agent.address, environ={}, region="eu", namespace="shop", token="secret") as client:
            reply = client.call(RAFT_LIST_PEERS, Empty(), stale=True)

        (meta,) = agent.metas(RAFT_LIST_PEERS)
        assert reply == RaftConfiguration(index=12)
        assert (client.last.index, client.last.server) == (77, "fake")
        assert (meta.region, meta.namespace, meta.token, meta.stale) == ("eu", "shop", "secret", True)
        assert meta.request_id is None


def test_a_refusal_says_which_index_to_wait_above() -> None:
    refusal = with_meta(NotFound("no job"), ReplyMeta(index=41, server="s2"))
    with fake_agent({JOB_GET: answering(refusal, NotFound("nor now"))}) as agent, connect(agent.address) as client:
        for _ in range(2):  # the second says nothing, and what is known stays
            with pytest.raises(NotFound):
                client.call(JOB_GET, JobRequest(job_id="web"))
            assert (client.last.index, client.last.server) == (41, "s2")


def test_writes_are_numbered_within_one_session() -> None:
    with fake_agent({JOB_DEREGISTER: answering(DONE)}) as agent:
        with open_client(target_of(agent.address)) as client:
            client.call(JOB_DEREGISTER, STOP)
            client.call(JOB_DEREGISTER, STOP)
        with open_client(target_of(agent.address)) as other:
            other.call(JOB_DEREGISTER, STOP)

        ids = [meta.request_id for meta in agent.metas(JOB_DEREGISTER)]
        assert [one.seq for one in ids if one] == [1, 2, 1]
        assert len({one.session for one in ids if one}) == 2


@pytest.mark.parametrize("weather", [Unavailable("no leader"), Busy("full"), OutcomeUnknown("leader gone")])
def test_a_write_is_sent_again_under_the_same_id_until_it_is_answered(weather: FedschedError) -> None:
    with fake_agent({JOB_DEREGISTER: answering(weather, weather, DONE)}) as agent:
        client, pauses = patient(agent)
        with client:
            assert client.call(JOB_DEREGISTER, STOP) == DONE

        ids = {
            (meta.request_id.session, meta.request_id.seq) for meta in agent.metas(JOB_DEREGISTER) if meta.request_id
        }
        assert len(agent.asked) == 3
        assert len(ids) == 1
        assert len(pauses) == 2
        assert pauses[0] < pauses[1]


def test_a_link_lost_in_the_middle_of_a_write_is_dialled_again() -> None:
    agents: list[FakeAgent] = []

    def answer(request: Any) -> JobWriteReply:
        if len(agents[0].asked) == 1:
            agents[0].cut_links()
        return DONE

    with fake_agent({JOB_DEREGISTER: answer}) as agent:
        agents.append(agent)
        client, _ = patient(agent)
        with client:
            assert client.call(JOB_DEREGISTER, STOP) == DONE

        assert agent.connections == 2
        assert len({meta.request_id.seq for meta in agent.metas(JOB_DEREGISTER) if meta.request_id}) == 1


def test_patience_ends_with_the_last_thing_heard() -> None:
    with fake_agent({JOB_DEREGISTER: answering(Unavailable("no leader"))}) as agent:
        client, pauses = patient(agent, patience_s=5.0)
        with client, pytest.raises(DeadlineExceeded) as caught:
            client.call(JOB_DEREGISTER, STOP)

    assert caught.value.message == "Job.Deregister was given up after 5 s; last heard: no leader"
    assert caught.value.hint == "it may still be carried out: look before you try again"
    assert 3 < sum(pauses) <= 5


def test_reads_wait_out_the_weather_too_and_say_so_in_the_end() -> None:
    with fake_agent({RAFT_LIST_PEERS: answering(Unavailable("no leader"))}) as agent:
        client, _ = patient(agent, patience_s=2.0)
        with client, pytest.raises(DeadlineExceeded, match="is a majority of the region's servers up"):
            client.call(RAFT_LIST_PEERS, Empty())


@pytest.mark.parametrize("refusal", [Conflict("changed", hint="look"), NotFound("no job"), DiskPressure("disk full")])
def test_refusals_are_not_retried_and_come_as_they_were_raised(refusal: FedschedError) -> None:
    with fake_agent({JOB_GET: answering(refusal)}) as agent:
        client, pauses = patient(agent)
        with client, pytest.raises(type(refusal)) as caught:
            client.call(JOB_GET, JobRequest(job_id="web"))

        assert (caught.value.message, caught.value.hint) == (refusal.message, refusal.hint)
        assert pauses == []
        assert len(agent.asked) == 1


def test_what_is_neither_a_read_nor_a_numbered_write_is_sent_once() -> None:
    with fake_agent({RAFT_TRANSFER_LEADERSHIP: answering(Unavailable("no leader"), PeerReply())}) as agent:
        client, _ = patient(agent)
        with client, pytest.raises(Unavailable, match="no leader"):
            client.call(RAFT_TRANSFER_LEADERSHIP, PeerRequest())

        assert len(agent.asked) == 1


def test_who_asks_once_says_what_it_says_and_hears_what_is_said() -> None:
    meta = CallMeta(namespace="shop", stale=True, request_id=RequestID(session="mine", seq=7))
    with (
        fake_agent({JOB_DEREGISTER: answering(DONE)}, index=77) as agent,
        open_client(target_of(agent.address)) as client,
    ):
        reply, beside = client.ask(JOB_DEREGISTER, STOP, meta, timeout_s=20)

        assert (reply, beside.index) == (DONE, 77)
        assert agent.metas(JOB_DEREGISTER) == [meta]  # the client adds nothing of its own


@pytest.mark.parametrize("outcome", [Unavailable("no leader"), OutcomeUnknown("leader gone"), Conflict("changed")])
def test_who_asks_once_is_told_of_the_weather_and_asks_again_itself(outcome: FedschedError) -> None:
    with fake_agent({JOB_DEREGISTER: answering(outcome, DONE)}) as agent:
        client, pauses = patient(agent)
        with client:
            with pytest.raises(FedschedError, match=outcome.message):
                client.ask(JOB_DEREGISTER, STOP)
            assert (len(agent.asked), pauses) == (1, [])

            assert client.ask(JOB_DEREGISTER, STOP)[0] == DONE


def test_who_asks_once_waits_no_longer_than_it_said() -> None:
    released = threading.Event()

    def answer(request: Any, context: CallContext) -> JobWriteReply:
        released.wait(20)
        return DONE

    with fake_agent({JOB_DEREGISTER: answer}) as agent, open_client(target_of(agent.address)) as client:
        try:
            with pytest.raises(DeadlineExceeded):
                client.ask(JOB_DEREGISTER, STOP, timeout_s=0.05)
        finally:
            released.set()


@pytest.mark.parametrize("answer", [5, [{}], [{}, "x"], [[], b""], [{"Index": "x"}, b""], [{}, dumps([])]])
def test_an_answer_out_of_shape_is_refused(answer: Any) -> None:
    class OddCall:
        def wait_reply(self) -> bytes:
            return dumps(answer)

    class OddLink:
        def open_call(self, *_: Any) -> Any:
            return OddCall()

        def close(self) -> None:
            pass

    with Client(target_of(), OddLink) as client, pytest.raises(CodecError):
        client.ask(JOB_GET, JobRequest(job_id="web"))


def test_nobody_listening_is_reported_at_once() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{free.getsockname()[1]}"
    with connect(address, environ={}) as client, pytest.raises(Unavailable, match="cannot reach http://127"):
        client.call(RAFT_LIST_PEERS, Empty())


def test_a_download_gives_the_pieces_and_then_the_reply() -> None:
    def answer(request: Any) -> Any:
        return SnapshotReply(index=5, size=6), [b"abc", b"def"]

    with fake_agent({SNAPSHOT_SAVE: answer}) as agent, open_client(target_of(agent.address)) as client:
        stream = client.download(SNAPSHOT_SAVE, Empty())

        assert b"".join(stream) == b"abcdef"
        assert stream.reply() == SnapshotReply(index=5, size=6)


def test_a_download_that_is_refused_raises_the_refusal() -> None:
    with (
        fake_agent({SNAPSHOT_SAVE: answering(Conflict("one at a time"))}) as agent,
        open_client(target_of(agent.address)) as client,
    ):
        stream = client.download(SNAPSHOT_SAVE, Empty())

        with pytest.raises(Conflict, match="one at a time"):
            list(stream)
        with pytest.raises(Conflict, match="one at a time"):
            stream.reply()


def test_an_upload_streams_everything_up() -> None:
    pieces = [bytes([number]) * 100_000 for number in range(30)]
    with fake_agent({SNAPSHOT_RESTORE: answering(SnapshotReply(index=8))}) as agent:
        with open_client(target_of(agent.address)) as client:
            reply = client.upload(SNAPSHOT_RESTORE, Empty(), pieces)

        assert reply.index == 8
        assert agent.uploaded == b"".join(pieces)


def test_an_upload_that_is_refused_raises_the_refusal() -> None:
    with (
        fake_agent({SNAPSHOT_RESTORE: answering(Conflict("not now"))}) as agent,
        open_client(target_of(agent.address)) as client,
        pytest.raises(Conflict, match="not now"),
    ):
        client.upload(SNAPSHOT_RESTORE, Empty(), [b"x"])

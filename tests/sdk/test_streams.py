"""Streams from a plain thread: several at once, both ways, over agents that come and go."""

from __future__ import annotations

import os
from typing import Any

import pytest

from fedsched.model.errors import NotFound, Unavailable
from fedsched.model.region import RaftConfiguration
from fedsched.rpc.method import Empty
from fedsched.rpc.methods.alloc_access import (
    ALLOC_EXEC,
    ALLOC_LOGS,
    FS_CAT,
    AllocExecReply,
    AllocExecRequest,
    AllocLogsRequest,
    ExecFrame,
    FileFrame,
    FsReadRequest,
    StreamReply,
)
from fedsched.rpc.methods.raft import RAFT_LIST_PEERS
from fedsched.rpc.server_side import CallContext
from fedsched.sdk.client import Client
from fedsched.sdk.connect import connect
from fedsched.sdk.streams import Stream
from tests.verbs.fake_agent import fake_agent


async def logs(request: AllocLogsRequest, context: CallContext) -> StreamReply:
    for number in range(200):
        await context.send(FileFrame(file=request.task, offset=number, data=b"x" * 30_000))
    return StreamReply(bytes_sent=200)


async def echo(request: AllocExecRequest, context: CallContext) -> AllocExecReply:
    total = 0
    async for frame in context:
        total += len(frame.stdin)
        await context.send(ExecFrame(stdout=frame.stdin))
    return AllocExecReply(exit_code=total % 251)


def all_of(client: Client, *streams: Stream[Any]) -> list[list[Any]]:
    taken: list[list[Any]] = [[] for _ in streams]
    while not all(one.is_over for one in streams):
        for at, stream in enumerate(streams):
            while (item := stream.take()) is not None:
                taken[at].append(item)
        client.wait(5.0)
    return taken


def test_several_streams_share_a_link() -> None:
    with fake_agent({ALLOC_LOGS: logs}) as agent, connect(agent.address, environ={}) as client:
        streams = [client.open_stream(ALLOC_LOGS, AllocLogsRequest(alloc_id="a", task=str(n))) for n in range(5)]
        taken = all_of(client, *streams)

        assert [[one.offset for one in frames] for frames in taken] == [list(range(200))] * 5
        assert [{one.file for one in frames} for frames in taken] == [{str(n)} for n in range(5)]
        assert [stream.reply().bytes_sent for stream in streams] == [200] * 5
        assert agent.connections == 1


def test_what_goes_up_never_waits_for_what_comes_down() -> None:
    with fake_agent({ALLOC_EXEC: echo}) as agent, connect(agent.address, environ={}) as client:
        stream = client.open_stream(ALLOC_EXEC, AllocExecRequest(alloc_id="a"))
        unsent = [ExecFrame(stdin=b"y" * 60_000)] * 100
        got = 0
        while got < 6_000_000:
            while unsent and stream.try_send(unsent[0]):
                del unsent[0]
            while (frame := stream.take()) is not None:
                got += len(frame.stdout)
            client.wait(5.0)
        stream.end_items()

        assert stream.reply().exit_code == 6_000_000 % 251


def test_refusals_come_back_as_they_were_raised() -> None:
    def refuse(request: Any) -> Any:
        raise NotFound("no such file")

    with fake_agent({FS_CAT: refuse}) as agent, connect(agent.address, environ={}) as client:
        stream = client.open_stream(FS_CAT, FsReadRequest(alloc_id="a"))
        assert all_of(client, stream) == [[]]
        with pytest.raises(NotFound, match="no such file"):
            stream.reply()


def test_a_descriptor_that_has_something_to_say_ends_the_wait() -> None:
    reading, writing = os.pipe()
    with fake_agent({ALLOC_EXEC: echo}) as agent, connect(agent.address, environ={}) as client:
        os.write(writing, b"x")
        assert client.wait(5.0, [reading]) == [reading]
        stream = client.open_stream(ALLOC_EXEC, AllocExecRequest(alloc_id="a"))
        ready: list[int] = []
        while not ready:
            ready = client.wait(5.0, [reading])
        assert ready == [reading]
        os.read(reading, 1)
        stream.cancel()
        assert client.wait(0.01, [reading]) == []
    os.close(reading)
    os.close(writing)


def test_without_a_link_waiting_is_sleeping() -> None:
    slept: list[float] = []
    client = connect("http://127.0.0.1:1", environ={})
    client._sleep = slept.append

    assert client.wait(0.5) == []
    assert slept == [0.5]


def test_the_next_agent_is_asked_when_one_is_gone() -> None:
    answers = {RAFT_LIST_PEERS: lambda _: RaftConfiguration()}
    with fake_agent(answers) as one, fake_agent(answers) as two:
        both = f"http://127.0.0.1:1,{one.address},{two.address}"
        with connect(both, environ={}) as client:
            client.call(RAFT_LIST_PEERS, Empty())
            assert (one.connections, two.connections) == (1, 0)
            client.close()
            client.call(RAFT_LIST_PEERS, Empty())
            assert (one.connections, two.connections) == (2, 0)
    with connect("http://127.0.0.1:1,http://127.0.0.1:2", environ={}) as client, pytest.raises(Unavailable):
        client.call(RAFT_LIST_PEERS, Empty())

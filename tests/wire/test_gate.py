"""The stream under a websocket: bounded reading ahead, gathered writing."""

from __future__ import annotations

import pytest
import trio
import trio.testing

from fedsched.wire.gate import UNSENT_BYTES_MAX, GateStream


class Slow(trio.abc.Stream):
    """Takes a write when it is told to, and records it."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.may_write = trio.Event()
        self.readable = b"x" * 1000
        self.is_closed = False

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self.may_write.wait()
        self.writes.append(bytes(data))

    async def wait_send_all_might_not_block(self) -> None:
        await self.may_write.wait()

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        data, self.readable = self.readable[:max_bytes], self.readable[max_bytes or 0 :]
        await trio.lowlevel.checkpoint()
        return data

    async def aclose(self) -> None:
        self.is_closed = True
        await trio.lowlevel.checkpoint()


def test_reading_stops_at_the_allowance_until_a_message_was_delivered_or_more_is_allowed() -> None:
    async def main() -> None:
        gate = GateStream(Slow(), 10)
        assert len(await gate.receive_some(7)) == 7
        assert len(await gate.receive_some(7)) == 3
        with trio.move_on_after(0.01) as scope:
            await gate.receive_some(7)
        assert scope.cancelled_caught

        async with trio.open_nursery() as nursery:
            nursery.start_soon(gate.receive_some)
            await trio.testing.wait_all_tasks_blocked()
            gate.allow(5)  # less is no reason to go on
            await trio.testing.wait_all_tasks_blocked()
            gate.allow(20)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(gate.receive_some, 1)
            await trio.testing.wait_all_tasks_blocked()
            gate.delivered()

    trio.run(main)


def test_a_reader_that_waits_is_let_go_when_the_stream_closes() -> None:
    async def main() -> None:
        near, _ = trio.testing.memory_stream_pair()
        gate = GateStream(near, 0)
        async with trio.open_nursery() as nursery:

            async def read() -> None:
                with pytest.raises(trio.ClosedResourceError):
                    await gate.receive_some(1)

            nursery.start_soon(read)
            await trio.testing.wait_all_tasks_blocked()
            await gate.aclose()
        assert gate.closed.is_set()

    trio.run(main)


def test_what_is_sent_while_corked_leaves_in_one_write() -> None:
    async def main() -> None:
        slow = Slow()
        slow.may_write.set()
        gate = GateStream(slow, 10)
        gate.cork()
        for data in (b"a", b"b", b"c"):
            await gate.send_all(data)
        assert slow.writes == []
        await gate.uncork()
        await gate.send_all(b"d")
        await gate.wait_send_all_might_not_block()
        assert slow.writes == [b"abc", b"d"]

    trio.run(main)


def test_what_is_sent_beside_a_write_follows_it_and_does_not_pile_up() -> None:
    async def main() -> None:
        slow = Slow()
        gate = GateStream(slow, 10)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(gate.send_all, b"first")
            await trio.testing.wait_all_tasks_blocked()
            await gate.send_all(b"small")  # does not wait
            nursery.start_soon(gate.send_all, b"x" * (UNSENT_BYTES_MAX + 1))
            await trio.testing.wait_all_tasks_blocked()
            await gate.uncork()  # somebody is writing already
            assert len(nursery.child_tasks) == 2
            slow.may_write.set()
        assert slow.writes == [b"first", b"small" + b"x" * (UNSENT_BYTES_MAX + 1)]

    trio.run(main)

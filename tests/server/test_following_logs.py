"""A log is followed to its end, whatever is cut, killed or replaced on the way: every line once, in order.

`FEDSCHED_LOG_LINES` sets how many lines; a million is what is promised, a few thousand are enough for every day.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import trio

from fedsched.model.errors import Unavailable
from fedsched.rpc.methods.alloc_access import ALLOC_LOGS, AllocLogsRequest, LogPlace
from tests.builders import an_id
from tests.client.access_kit import LogWriter
from tests.server import region as region_kit
from tests.server.node_kit import LinkedClient, a_node
from tests.server.region import Region, run_region

ALLOC = an_id(1)
LINES = int(os.environ.get("FEDSCHED_LOG_LINES", "60000"))
CUTS = max(10, LINES // 10_000)
FILE_BYTES = 64 * 1024
AHEAD = 4_000
"""Lines that the writer may be ahead, so that the reader is where it writes most of the time."""


class Reader:
    """Follows one log through whichever servers run, from its place whenever it is cut off."""

    def __init__(self, region: Region) -> None:
        self._region = region
        self._place: LogPlace | None = None
        self._rest = b""
        self.count = 0
        self.cuts = 0
        """Times that it went by itself."""
        self.lost = 0

    def take(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            assert int(line) == self.count, f"line {line!r} came where {self.count} was due"
            self.count += 1

    async def run(self) -> None:
        while self.count < LINES:
            running = [one for one in self._region.running() if hasattr(one.server, "calls")]  # those that are up
            member = running[(self.cuts + self.lost) % len(running)]
            request = AllocLogsRequest(alloc_id=ALLOC, follow=True, place=self._place)
            try:
                async with member.caller.open_stream(ALLOC_LOGS, request) as stream:
                    while self.count < LINES and self.count <= LINES * self.cuts // CUTS:
                        frame = await stream.receive()
                        assert not frame.missed_files
                        self.take(frame.data)
                        if frame.file:
                            self._place = LogPlace(file=int(frame.file.rpartition(".")[2]), offset=frame.offset)
                self.cuts += 1
            except Unavailable:
                self.lost += 1


async def write(logs: Path, reader: Reader) -> None:
    writer = LogWriter(logs, max_bytes=FILE_BYTES, max_files=100_000)
    for number in range(LINES):
        writer.write(b"%d\n" % number)
        if not number % 500:
            await trio.lowlevel.checkpoint()
            while number - reader.count > AHEAD:
                await trio.sleep(0.001)
    writer.close()


async def trouble(region: Region, node: LinkedClient, reader: Reader) -> None:
    """Links are cut, the agent is killed, a server is lost, each while the log is being read."""
    steps = 6
    for step in range(steps):
        while reader.count < LINES * (step + 1) // (steps + 2):
            await trio.sleep(0.005)
        match step:
            case 0 | 3:
                node.cut()
            case 1 | 4:
                await node.restart()
            case _:
                lost = next(one for one in region.running() if one.name == ("s3" if step == 2 else "s2"))
                await region.stop(lost)
                await region.restart(lost)
                await region.leader()
                node.cut()
        await node.link_to(region.running()[step % len(region.running())])


def test_every_line_comes_once_and_in_order_through_cuts_kills_and_lost_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(region_kit, "SCENARIO_S", 30 + LINES / 5_000)

    async def scenario(region: Region) -> None:
        async with a_node(region, holder="s1") as node:
            reader = Reader(region)
            logs = node.client.runners[ALLOC].context.root / "alloc" / "logs"
            async with trio.open_nursery() as nursery:
                nursery.start_soon(write, logs, reader)
                nursery.start_soon(trouble, region, node, reader)
                await reader.run()
            assert reader.count == LINES
            assert reader.cuts >= CUTS
            assert reader.lost

    run_region(tmp_path, scenario, num_schedulers=0)

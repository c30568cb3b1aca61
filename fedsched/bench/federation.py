"""`bench federation`: what the death of a server costs requests that come from another region.

One server of region `near`, three of region `far`, real processes that find each other by gossip. A client asks the
near server four times a second for something of the far region, linearizably, one request after the other. Then one of
the far servers is killed as a power cut would, first one that does not lead, then the leader. No request may fail; how
much longer than usual the slowest of each phase took is the figure. A leader's death costs an election besides.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from statistics import median
from typing import Any, Final

from fedsched.agent.process import server_processes
from fedsched.bench.frame import BenchOptions, BenchResult
from fedsched.model.errors import FedschedError
from fedsched.rpc.method import Empty
from fedsched.rpc.methods.autopilot import AUTOPILOT_HEALTH
from fedsched.rpc.methods.job import JOB_LIST, JobListRequest
from fedsched.rpc.methods.raft import RAFT_LIST_PEERS
from fedsched.sdk.client import Client
from fedsched.sdk.connect import connect

FAR: Final = "far"
PER_S: Final = 4
BEFORE: Final = 20
"""Requests that say what is usual."""
AFTER: Final = 60
"""Requests after each death: longer than gossip needs to know of it."""
PATIENCE_S: Final = 60.0


def run(options: BenchOptions) -> BenchResult:
    """About a minute."""
    after = options.count or AFTER
    with ExitStack() as stack:
        (near,) = server_processes(["near-1"], options.directory, region="near")
        stack.callback(near.stop)
        near.start()
        client = stack.enter_context(connect(near.address, region=FAR))
        near.wait_until(lambda: _peers(client, "near"), "the near region answers", patience_s=PATIENCE_S)
        extra = f'retry_join_wan = ["127.0.0.1:{near.serf_port}"]\n'
        far = server_processes(["far-1", "far-2", "far-3"], options.directory, region=FAR, extra=extra)
        for server in far:
            stack.callback(server.stop)
            server.start()
        options.say("two regions find each other ...")
        near.wait_until(lambda: len(_peers(client, FAR)) == len(far), "the far region is there", patience_s=PATIENCE_S)
        usual = _ask(client, BEFORE)
        rows = [{"phase": "all well", "requests": BEFORE, "failed": usual.failed, "slowest_ms": usual.slowest_ms}]
        figures: dict[str, Any] = {"forward_usual_ms": usual.median_ms}
        for name, leads in (("dead_server", False), ("dead_leader", True)):
            dead = next(one for one in far if (one.name == _leader(client)) is leads)
            options.say(f"{dead.name} is killed; {after} requests at {PER_S} a second ...")
            dead.kill()
            seen = _ask(client, after)
            figures[f"forward_{name}_added_ms"] = max(0.0, seen.slowest_ms - usual.median_ms)
            figures[f"forward_{name}_failed"] = seen.failed
            rows.append({"phase": name, "requests": after, "failed": seen.failed, "slowest_ms": seen.slowest_ms})
            dead.start()  # two of three are needed for the next
            near.wait_until(lambda: _is_caught_up(client, len(far)), "all far servers vote", patience_s=PATIENCE_S)
    return BenchResult(figures, rows)


class _Seen:
    def __init__(self) -> None:
        self.took_ms: list[float] = []
        self.failed = 0
        self.last_error = ""

    @property
    def slowest_ms(self) -> float:
        return max(self.took_ms)

    @property
    def median_ms(self) -> float:
        return median(self.took_ms)


def _ask(client: Client, count: int) -> _Seen:
    seen = _Seen()
    began = time.perf_counter()
    for number in range(count):
        time.sleep(max(0.0, began + number / PER_S - time.perf_counter()))
        start = time.perf_counter()
        try:
            client.call(JOB_LIST, JobListRequest())
        except FedschedError as error:
            seen.failed += 1
            seen.last_error = str(error)
        seen.took_ms.append((time.perf_counter() - start) * 1000)
    return seen


def _peers(client: Client, region: str) -> list[str]:
    return [one.node for one in client.call(RAFT_LIST_PEERS, Empty(), region=region).servers]


def _leader(client: Client) -> str:
    return next(one.node for one in client.call(RAFT_LIST_PEERS, Empty(), region=FAR).servers if one.leader)


def _is_caught_up(client: Client, count: int) -> bool:
    """All vote and follow: the leader hears from each of them."""
    found = client.call(AUTOPILOT_HEALTH, Empty(), region=FAR)
    return len(found.servers) == count and all(one.healthy for one in found.servers)

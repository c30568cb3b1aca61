"""From clients through histories to verdicts, against a service that is right and against one that is planted wrong."""

from __future__ import annotations

import itertools
import threading
from pathlib import Path
from random import Random

import pytest

from fedsched.sim.linear import CAS, PUT, Operation, Verdict, check, from_lines
from tests.chaos.stand_in import BUGS, STALE_GOES_BACK, StandIn, StandInRegister
from tests.chaos.workload import Client, Keys, Record, Unknown, make_workload
from tests.e2e.calls import Seen

STEPS = 1500


def run_clients(service: StandIn, seed: int, steps: int = STEPS) -> Record:
    """Clients take turns on a counted clock: the same seed gives the same history, without a single sleep."""
    record = Record()
    keys = Keys("key", at_once=3, operations_max=200)
    ticks = itertools.count(1)
    clients = [
        Client(
            f"c{number}",
            StandInRegister(service, number),
            keys,
            record,
            Random(f"{seed}/{number}"),
            _set_event(),
            clock=lambda: float(next(ticks)),
        )
        for number in range(5)
    ]
    for _, client in zip(range(steps), itertools.cycle(clients), strict=False):
        client.step()
    return record


def _set_event() -> threading.Event:
    event = threading.Event()
    event.set()  # waiting on it returns at once
    return event


@pytest.mark.parametrize("seed", range(3))
def test_a_service_that_keeps_its_word_passes(seed: int) -> None:
    record = run_clients(StandIn(Random(seed)), seed)

    assert check(record.operations) == []
    assert record.stale_problems == []
    assert record.counts["write_retried"] > 20
    assert record.counts["cas_refused"] > 20


@pytest.mark.parametrize("bug", BUGS)
@pytest.mark.parametrize("seed", range(3))
def test_every_planted_violation_is_found(bug: str, seed: int) -> None:
    record = run_clients(StandIn(Random(seed), bug), seed)

    if bug == STALE_GOES_BACK:
        assert record.stale_problems
    else:
        assert {finding.verdict for finding in check(record.operations)} == {Verdict.BROKEN}


def test_a_key_is_given_up_after_its_share_of_operations() -> None:
    record = run_clients(StandIn(Random(1)), 1)
    per_key = {operation.key: 0 for operation in record.operations}
    for operation in record.operations:
        per_key[operation.key] += 1

    assert len(per_key) > 5
    assert max(per_key.values()) <= 200


class Silent:
    """A connection on which nothing is ever answered."""

    connection = 0
    hops = 0

    def put(self, key: str, value: str, request: int) -> int:
        raise Unknown("silence")

    def cas(self, key: str, expected: int, value: str, request: int) -> int | None:
        raise Unknown("no leader")

    def get(self, key: str) -> Seen:
        raise Unknown("silence")

    get_stale = get

    def hop(self) -> None:
        self.hops += 1

    def close(self) -> None:
        pass


def test_a_write_that_stays_unknown_is_left_open_and_a_failed_read_leaves_no_trace() -> None:
    record = Record()
    ticks = itertools.count(1)
    silent = Silent()
    client = Client(
        "c", silent, Keys("key"), record, Random(4), _set_event(), clock=lambda: float(next(ticks)), unknown_after_s=5
    )
    for _ in range(30):
        client.step()

    assert {operation.op for operation in record.operations} == {PUT, CAS}
    assert all(operation.info and operation.ret is None for operation in record.operations)
    assert record.writes == []
    assert silent.hops > 30


def test_writes_count_as_resumed_only_if_they_were_called_after_the_fault() -> None:
    record = Record()
    for call, ret in ((1.0, 6.0), (4.0, 9.0), (5.5, 7.0)):
        record.add(Operation(client="c", op=PUT, key="k", argument=str(call), result=1, call=call, ret=ret))

    assert record.wrote_since(5.0) == 7.0
    assert record.wrote_since(2.0) == 7.0
    assert record.wrote_since(6.0) is None


def test_threads_write_their_history_as_json_lines_and_stop_when_asked(tmp_path: Path) -> None:
    service = StandIn(Random(1))
    lock = threading.Lock()

    class Locked(StandInRegister):
        def _once(self, key: str, value: str, expected: int | None, request: int) -> int | None:
            with lock:
                return super()._once(key, value, expected, request)

        def get(self, key: str) -> Seen:
            with lock:
                return super().get(key)

    workload = make_workload(1, lambda number: Locked(service, number), tmp_path / "history.jsonl")
    workload.start()
    while len(workload.record.operations) < 200:
        workload.stop_asked.wait(0.01)

    assert workload.stop() == []
    assert from_lines((tmp_path / "history.jsonl").read_text()) == workload.record.operations
    assert check(workload.record.operations) == []


def test_a_client_that_breaks_is_reported() -> None:
    class Broken(Silent):
        def put(self, key: str, value: str, request: int) -> int:
            raise ZeroDivisionError

        def cas(self, key: str, expected: int, value: str, request: int) -> int | None:
            raise ZeroDivisionError

    threading.excepthook, hook = lambda _: None, threading.excepthook
    try:
        workload = make_workload(1, lambda _: Broken(), None, clients=1)
        workload.start()
        workload.clients[0].join(30)
        assert workload.stop() == ["client c0 failed: ZeroDivisionError()"]
    finally:
        threading.excepthook = hook

"""What clients say, gathered and understood without looking at every allocation."""

from __future__ import annotations

import gc
import sys
from typing import Any

import pytest

from fedsched.model.alloc import Allocation, ClientStatus, RescheduleEvent, RescheduleTracker
from fedsched.model.errors import BadRequest, Busy, Conflict, NotFound, TooLarge
from fedsched.model.evaluation import Evaluation, Trigger
from fedsched.model.ids import uuid_bytes
from fedsched.model.node import NodeStatus
from fedsched.model.policies import ReschedulePolicy
from fedsched.server.leader import client_updates_core
from fedsched.server.leader.client_updates_core import (
    PENDING_IDS_MAX,
    ClientUpdatesCore,
    Report,
    check_report,
    consequences,
    may_reschedule,
    merged,
    only_own,
)
from fedsched.state.fields import pack
from fedsched.state.tables.alloc_columns import CLIENT_CODES, stored_fields
from fedsched.state.tables.alloc_reader import AllocationsReader
from tests.builders import a_group, a_job, an_id
from tests.server.leader.worlds import NS, Region, own_fields
from tests.state.worlds import ids

MS = 1_000_000
LIMITED = ReschedulePolicy(attempts=2, interval_s=3600.0, delay_s=5.0, delay_function="constant", unlimited=False)
OFF = ReschedulePolicy(attempts=0, unlimited=False)


def a_report(
    numbers: list[int], status: ClientStatus = ClientStatus.RUNNING, *, node: int = 1, **fields: Any
) -> Report:
    return Report(an_id(node), ids(numbers), bytes([CLIENT_CODES[status]]) * len(numbers), **fields)


def with_running(*numbers: int, policy: ReschedulePolicy | None = None, **fields: Any) -> Region:
    region = Region()
    slot = region.node(1)
    region.register(a_job(groups=[a_group(reschedule_policy=policy or ReschedulePolicy())], **fields))
    region.place(numbers, slot)
    region.run(numbers)
    return region


def follow(region: Region, numbers: list[int], status: ClientStatus) -> tuple[list[Evaluation], bytes]:
    report = a_report(numbers, status)
    return consequences(region.store, report.ids, report.statuses, region.now_ns, region.new_id)


def triggers(region: Region, numbers: list[int], status: ClientStatus) -> list[tuple[str, str]]:
    return [(one.job_id, one.triggered_by) for one in follow(region, numbers, status)[0]]


def test_reports_are_gathered_for_fifty_milliseconds() -> None:
    region = with_running(1, 2)
    core = ClientUpdatesCore()
    assert core.wake_at_ns() is None

    first = core.add(a_report([1]), 0)
    second = core.add(a_report([2], node=1), 30 * MS)

    assert first == second
    assert core.wake_at_ns() == 50 * MS
    assert core.wake(region.store, 49 * MS, time_ns=region.now_ns, new_id=region.new_id) == []
    (batch,) = core.wake(region.store, 50 * MS, time_ns=region.now_ns, new_id=region.new_id)
    assert batch.number == first
    assert batch.command.ids == ids([1, 2])
    assert core.wake_at_ns() is None
    assert core.add(a_report([1]), 60 * MS) == first + 1


def test_a_full_batch_does_not_wait() -> None:
    core = ClientUpdatesCore()
    core.add(Report(an_id(1), bytes(16 * 16_384), b"\2" * 16_384), 7)

    assert core.wake_at_ns() == 7


def test_too_many_reports_are_asked_to_come_again() -> None:
    core = ClientUpdatesCore()
    core.add(Report(an_id(1), bytes(16 * PENDING_IDS_MAX), b"\2" * PENDING_IDS_MAX), 0)

    with pytest.raises(Busy):
        core.add(a_report([1]), 0)
    assert core.pending == PENDING_IDS_MAX


def test_details_are_bounded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_updates_core, "PENDING_BYTES_MAX", 10)
    core = ClientUpdatesCore()
    core.add(a_report([1], client=b"12345678", client_sizes=b"\x08\0\0\0"), 0)

    with pytest.raises(Busy):
        core.add(a_report([2], client=b"12345678", client_sizes=b"\x08\0\0\0"), 0)


def test_reports_about_nothing_take_room_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_updates_core, "PENDING_IDS_MAX", 2)
    region, core = with_running(1), ClientUpdatesCore()
    core.add(a_report([]), 0)
    core.add(a_report([]), 0)

    with pytest.raises(Busy):
        core.add(a_report([1]), 0)
    (batch,) = core.flush(region.store, time_ns=region.now_ns, new_id=region.new_id)
    assert (batch.command.ids, batch.strange) == (b"", {})


def with_two_nodes() -> Region:
    """Allocations 1 to 3 run on the first node, 4 to 6 on the second."""
    region = with_running(1, 2, 3)
    region.place([4, 5, 6], region.node(2))
    region.run([4, 5, 6])
    return region


def test_what_a_node_says_about_allocations_of_others_is_dropped() -> None:
    region = with_two_nodes()
    details, sizes = pack(
        [stored_fields(Allocation(id="x", client_description=f"d{at}"), "client_description") for at in range(4)]
    )
    honest = a_report([1, 2], ClientStatus.COMPLETE)
    lying = a_report(
        [4, 3, 77, 6], ClientStatus.FAILED, node=2, healths=b"\2\2\2\1", client=details, client_sizes=sizes
    )
    core = ClientUpdatesCore()
    core.add(honest, 0)
    core.add(lying, 0)

    (batch,) = core.flush(region.store, time_ns=region.now_ns, new_id=region.new_id)
    region.do(batch.command)

    assert batch.strange == {an_id(2): 1}
    assert batch.command.ids == ids([1, 2, 4, 77, 6])
    assert [region.alloc(number).client_status.value for number in range(1, 7)] == [
        *("complete", "complete", "running", "failed", "running", "failed")
    ]
    assert [region.alloc(number).client_description for number in (4, 6)] == ["d0", "d3"]
    assert [region.alloc(number).deployment_status.healthy for number in (3, 4, 6)] == [True, False, True]


def test_a_node_that_speaks_only_of_others_changes_nothing() -> None:
    region = with_two_nodes()
    kept, strange = only_own(region.store, [a_report([1, 2], ClientStatus.FAILED, node=2)])

    assert (kept, strange) == ([Report(an_id(2), b"", b"")], {an_id(2): 2})
    assert merged(region.store, kept, region.now_ns, region.new_id).evaluations == ()


def test_a_node_that_is_gone_speaks_for_nobody() -> None:
    region = with_two_nodes()
    assert only_own(region.store, [a_report([1], node=9)])[1] == {an_id(9): 1}


def test_honest_reports_are_passed_on_as_they_are() -> None:
    region = with_two_nodes()
    reports = [a_report([1, 2]), a_report([4], node=2), a_report([])]
    assert only_own(region.store, reports) == (reports, {})
    assert only_own(region.store, []) == ([], {})


def test_details_without_sizes_are_refused() -> None:
    with pytest.raises(BadRequest, match="another length"):
        check_report(with_running(1).store, a_report([1], client=b"stray"))


def test_what_is_too_much_for_one_entry_is_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_updates_core, "BATCH_IDS", 2)
    region = with_running(1, 2, 3)
    core = ClientUpdatesCore()
    for number in (1, 2, 3):
        core.add(a_report([number]), 0)

    batches = core.wake(region.store, 0, time_ns=region.now_ns, new_id=region.new_id)

    assert [batch.command.ids for batch in batches] == [ids([1, 2]), ids([3])]


def test_reports_with_and_without_health_and_details_are_merged() -> None:
    region = with_running(1, 2, 3)
    details, sizes = pack([stored_fields(Allocation(id="x", client_description="well"), "client_description")])
    command = merged(
        region.store,
        [a_report([1]), a_report([2], healths=b"\1", client=details, client_sizes=sizes), a_report([3], healths=b"\2")],
        region.now_ns,
        region.new_id,
    )
    region.do(command)

    assert region.alloc(2).client_description == "well"
    healths = [region.alloc(number).deployment_status.healthy for number in (1, 2, 3)]
    assert healths == [True, True, False]


def test_of_two_reports_about_one_allocation_the_later_counts() -> None:
    region = with_running(1)
    reports = [a_report([1], ClientStatus.RUNNING), a_report([1], ClientStatus.COMPLETE)]

    region.do(merged(region.store, reports, region.now_ns, region.new_id))

    assert region.alloc(1).client_status is ClientStatus.COMPLETE


def test_plain_running_and_complete_updates_call_for_no_evaluation() -> None:
    region = with_running(1, 2)

    assert triggers(region, [1, 2], ClientStatus.RUNNING) == []
    assert triggers(region, [1, 2], ClientStatus.COMPLETE) == []
    assert triggers(region, [77], ClientStatus.FAILED) == []
    assert consequences(region.store, b"", b"", region.now_ns, region.new_id) == ([], b"")


def test_a_failed_allocation_that_may_be_replaced_has_its_job_evaluated() -> None:
    region = with_running(1, priority=61)

    (evaluation,), orphans = follow(region, [1], ClientStatus.FAILED)

    assert evaluation.triggered_by == Trigger.ALLOC_FAILURE.value
    assert (evaluation.priority, evaluation.type, evaluation.namespace) == (61, "service", "default")
    assert orphans == b""


def test_many_failures_of_one_job_make_one_evaluation() -> None:
    region = with_running(*range(1, 51))
    region.register(a_job("db"))
    region.place([60], 0, job="db")

    assert triggers(region, [*range(1, 51), 60], ClientStatus.FAILED) == [
        ("db", "alloc-failure"),
        ("web", "alloc-failure"),
    ]


def test_a_failure_that_is_told_twice_makes_one_evaluation() -> None:
    region = with_running(1)
    region.client([1], ClientStatus.FAILED)

    assert triggers(region, [1], ClientStatus.FAILED) == []


@pytest.mark.parametrize("kind", ["system", "sysbatch"])
def test_a_failure_in_a_job_that_is_not_rescheduled_makes_no_evaluation(kind: str) -> None:
    region = Region()
    slot = region.node(1)
    region.register(a_job(type=kind, groups=[a_group(reschedule_policy=None)]))
    region.place([1], slot)

    assert triggers(region, [1], ClientStatus.FAILED) == []


def test_a_failure_with_rescheduling_off_makes_no_evaluation() -> None:
    assert triggers(with_running(1, policy=OFF), [1], ClientStatus.FAILED) == []


@pytest.mark.parametrize(("past", "wanted"), [(1, [("web", "alloc-failure")]), (2, [])])
def test_a_failure_makes_an_evaluation_while_attempts_are_left(past: int, wanted: list[tuple[str, str]]) -> None:
    region = Region()
    slot = region.node(1)
    region.register(a_job(groups=[a_group(reschedule_policy=LIMITED)]))
    events = tuple(RescheduleEvent(reschedule_time_ns=region.now_ns - at * NS, delay_s=5.0) for at in range(past))
    record = Allocation(id=an_id(1), reschedule_tracker=RescheduleTracker(events=events))
    region.place([1], slot, **own_fields([0], [record], "reschedule_tracker"))

    assert triggers(region, [1], ClientStatus.FAILED) == wanted


def test_attempts_count_only_within_their_interval() -> None:
    old = RescheduleTracker(events=(RescheduleEvent(reschedule_time_ns=0, delay_s=5.0),) * 2)

    assert may_reschedule(LIMITED, old, 3601 * NS)
    assert not may_reschedule(LIMITED, old, 3599 * NS)
    assert not may_reschedule(None, None, 0)
    assert not may_reschedule(OFF, None, 0)
    assert may_reschedule(ReschedulePolicy(), old, 0)


def test_a_failure_that_a_later_evaluation_waits_for_makes_none() -> None:
    region = Region()
    slot = region.node(1)
    region.register(a_job())
    record = Allocation(id=an_id(1), followup_eval_id=an_id(99))
    region.place([1], slot, **own_fields([0], [record], "followup_eval_id"))

    assert triggers(region, [1], ClientStatus.FAILED) == []


def test_one_failure_of_many_that_may_be_replaced_is_enough() -> None:
    region = Region()
    slot = region.node(1)
    region.register(a_job())
    record = Allocation(id=an_id(1), followup_eval_id=an_id(99))
    region.place([1, 2], slot, **own_fields([0], [record], "followup_eval_id"))

    assert triggers(region, [1, 2], ClientStatus.FAILED) == [("web", "alloc-failure")]


@pytest.mark.parametrize("status", [ClientStatus.RUNNING, ClientStatus.COMPLETE, ClientStatus.FAILED])
def test_word_about_an_unknown_allocation_is_a_reconnect(status: ClientStatus) -> None:
    region = with_running(1)
    region.client([1], ClientStatus.UNKNOWN)

    assert triggers(region, [1], status) == [("web", "reconnect")]


def test_an_ended_allocation_of_a_job_that_is_gone_is_stopped_and_its_job_evaluated() -> None:
    region = with_running(1, 2, priority=70)
    region.stop("web", purge=True)
    command = merged(region.store, [a_report([1], ClientStatus.COMPLETE)], region.now_ns, region.new_id)

    region.do(command)

    assert command.stopped == ids([1])
    assert [(one.triggered_by, one.priority) for one in command.evaluations] == [("job-deregister", 70)]
    assert region.alloc(1).desired_status.value == "stop"
    assert region.alloc(2).desired_status.value == "run"


def test_a_running_update_for_a_job_that_is_gone_is_just_written() -> None:
    region = with_running(1)
    region.stop("web", purge=True)

    assert follow(region, [1], ClientStatus.RUNNING) == ([], b"")


def test_the_first_word_of_a_node_since_it_was_missed_is_noted() -> None:
    region = with_running(1)
    region.node_status(1, NodeStatus.DOWN)
    region.node_status(1, NodeStatus.INITIALIZING)

    command = merged(region.store, [a_report([1]), a_report([1])], region.now_ns, region.new_id)
    assert command.synced_nodes == (an_id(1),)
    region.do(command)

    assert merged(region.store, [a_report([1])], region.now_ns, region.new_id).synced_nodes == ()


@pytest.mark.parametrize("status", [NodeStatus.DOWN, NodeStatus.DISCONNECTED])
def test_a_client_may_not_report_while_its_node_counts_as_cut_off(status: NodeStatus) -> None:
    region = with_running(1)
    region.node_status(1, status)

    with pytest.raises(Conflict):
        check_report(region.store, a_report([1]))


def test_a_report_of_an_unknown_node_is_refused() -> None:
    with pytest.raises(NotFound):
        check_report(Region().store, a_report([1]))


@pytest.mark.parametrize(
    "report",
    [
        Report(an_id(1), b"\0" * 15, b"\2"),
        Report(an_id(1), bytes(16), b"\x09"),
        Report(an_id(1), bytes(16), b"\2", healths=b"\1\1"),
        Report(an_id(1), bytes(16), b"\2", healths=b"\3"),
        Report(an_id(1), bytes(16), b"\2", client=b"abc"[:0], client_sizes=b"\1\0\0\0"),
        Report(an_id(1), bytes(16), b"\2", client_sizes=b"\0\0\0"),
    ],
)
def test_a_report_out_of_shape_is_refused(report: Report) -> None:
    region = with_running(1)

    with pytest.raises(BadRequest):
        check_report(region.store, report)


def test_a_report_of_more_than_one_entry_holds_is_refused_whole() -> None:
    region = with_running(1)
    count = client_updates_core.BATCH_IDS + 1

    with pytest.raises(TooLarge):
        check_report(region.store, Report(an_id(1), bytes(16 * count), b"\2" * count))


def test_a_report_in_shape_is_taken() -> None:
    check_report(with_running(1).store, a_report([1], healths=b"\1"))


def test_a_batch_of_plain_updates_makes_no_object_per_allocation(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: AllocationsReader, slots: object) -> list[Allocation]:
        raise AssertionError("a plain update was looked at by itself")

    numbers = list(range(1, 1001))
    region = with_running(*numbers)
    half = bytes([CLIENT_CODES[ClientStatus.RUNNING]] * 500 + [CLIENT_CODES[ClientStatus.COMPLETE]] * 500)
    report = Report(an_id(1), b"".join(uuid_bytes(an_id(number)) for number in numbers), half)
    monkeypatch.setattr(AllocationsReader, "records", refuse)
    merged(region.store, [report], region.now_ns, region.new_id)
    gc.collect()
    before = sys.getallocatedblocks()

    command = merged(region.store, [report], region.now_ns, region.new_id)

    assert sys.getallocatedblocks() - before < 100
    assert len(command.ids) == 16_000
    assert command.evaluations == ()

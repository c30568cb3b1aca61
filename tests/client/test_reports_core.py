"""What a client says about its allocations: the newest state of each, once, until servers have confirmed it."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from fedsched.client.journal_records import AllocReport
from fedsched.client.report_columns import DETAILS_MAX, REPORT_BYTES, details_of, encode_report
from fedsched.client.reports_core import AGAIN_S, PACE_S, REPORT_MAX, ReportsCore
from fedsched.codec import from_bytes, loads
from fedsched.model.alloc import AllocDeploymentStatus, ClientStatus
from fedsched.model.task_state import TaskEvent, TaskState
from fedsched.rpc.methods.node_frames import NodeReport
from fedsched.server.leader.client_updates_core import Report, check_shape
from fedsched.wire.limits import DATA_BYTES_MAX
from tests.builders import an_id


def said(text: str = "", status: ClientStatus = ClientStatus.RUNNING) -> AllocReport:
    return AllocReport(client_status=status, client_description=text)


def test_changes_gather_for_a_moment_and_only_the_newest_state_is_said() -> None:
    core = ReportsCore()
    core.opened(0.0)
    core.next(0.0, lambda _: None)
    core.changed("a", 1.0)
    core.changed("a", 1.1)
    core.changed("b", 1.15)

    assert core.next(1.1, lambda _: said("early")) is None
    assert core.wake_at() == 1.0 + PACE_S
    saying = core.next(1.2, lambda one: said(f"{one} now"))

    assert saying is not None
    assert (saying.number, dict(saying.reports)) == (1, {"a": said("a now"), "b": said("b now")})


def test_nothing_is_said_again_that_servers_have_acknowledged() -> None:
    core = ReportsCore({"a": said("known")})
    core.opened(0.0)
    core.changed("a", 0.0)
    core.changed("b", 0.0)
    saying = core.next(1.0, lambda one: said("known") if one == "a" else said("new"))

    assert saying is not None
    assert list(saying.reports) == ["b"]
    core.sent(saying.number, saying.reports, 1.0)
    assert core.written(saying.number, 1.1) == {"b": said("new")}
    core.changed("b", 1.2)
    assert core.next(2.0, lambda _: said("new")) is None
    assert core.unsaid == 0


def test_one_report_is_under_way_at_a_time_and_is_said_again_if_nobody_confirms_it() -> None:
    core = ReportsCore()
    core.opened(0.0)
    core.changed("a", 0.0)
    first = core.next(1.0, lambda _: said("1"))
    assert first is not None
    core.sent(first.number, first.reports, 1.0)
    core.changed("b", 1.1)

    assert core.next(2.0, lambda _: said("2")) is None
    assert core.wake_at() == 1.0 + AGAIN_S
    again = core.next(1.0 + AGAIN_S, lambda _: said("3"))

    assert again is not None
    assert (again.number, dict(again.reports)) == (2, {"a": said("3"), "b": said("3")})
    core.sent(again.number, again.reports, 6.0)
    assert core.written(1, 6.1) == {}  # of a report that was given up
    assert set(core.written(2, 6.2)) == {"a", "b"}


def test_a_new_stream_says_what_was_not_confirmed_and_counts_from_one() -> None:
    core = ReportsCore()
    core.opened(0.0)
    core.changed("a", 0.0)
    first = core.next(1.0, lambda _: said())
    assert first is not None
    core.sent(first.number, first.reports, 1.0)
    core.closed()
    assert core.wake_at() == math.inf
    assert core.next(2.0, lambda _: said()) is None

    core.opened(3.0)
    again = core.next(3.0, lambda _: said())

    assert again is not None
    assert (again.number, list(again.reports)) == (1, ["a"])


def test_a_node_that_was_missed_says_everything_that_runs_even_if_it_was_acknowledged() -> None:
    core = ReportsCore({"a": said()})
    core.opened(0.0)
    core.say_all(["a"], 1.0)
    saying = core.next(1.0, lambda _: said())
    assert saying is not None
    assert list(saying.reports) == ["a"]

    core.sent(saying.number, saying.reports, 1.0)
    again = core.next(1.0 + AGAIN_S, lambda _: said())  # lost on the way: still said, though nothing changed
    assert again is not None
    assert list(again.reports) == ["a"]


def test_the_pace_is_what_servers_ask_for() -> None:
    core = ReportsCore()
    core.opened(0.0)
    core.next(0.0, lambda _: None)
    core.pace(1.0)
    core.changed("a", 5.0)

    assert core.wake_at() == 6.0


def test_what_is_forgotten_or_has_nothing_to_say_is_not_said() -> None:
    core = ReportsCore({"a": said()})
    core.opened(0.0)
    core.changed("a", 0.0)
    core.changed("b", 0.0)
    core.forget("a")

    assert core.next(1.0, lambda _: None) is None
    assert core.wake_at() == math.inf


def test_many_allocations_are_said_in_several_reports() -> None:
    core = ReportsCore()
    core.opened(0.0)
    for number in range(REPORT_MAX + 10):
        core.changed(an_id(number), 0.0)
    first = core.next(1.0, lambda _: said())
    assert first is not None
    assert len(first.reports) == REPORT_MAX
    core.sent(first.number, first.reports, 1.0)
    core.written(first.number, 1.1)

    rest = core.next(2.0, lambda _: said())

    assert rest is not None
    assert len(rest.reports) == 10


@given(st.lists(st.tuples(st.sampled_from(["change", "send", "lose", "write", "cut"]), st.integers(0, 3)), max_size=60))
@settings(max_examples=200)
def test_whatever_is_lost_the_last_state_of_everything_is_acknowledged_in_the_end(
    events: list[tuple[str, int]],
) -> None:
    """The other side of the push protocol: reports may be lost, streams may end, the newest state gets there."""
    core = ReportsCore()
    truth: dict[str, AllocReport] = {}
    servers: dict[str, AllocReport] = {}
    under_way: list[tuple[int, dict[str, AllocReport]]] = []
    now = 0.0
    core.opened(now)

    def send() -> None:
        saying = core.next(now, truth.get)
        if saying is not None:
            core.sent(saying.number, saying.reports, now)
            under_way.append((saying.number, dict(saying.reports)))

    def write() -> None:
        if under_way:
            number, reports = under_way.pop(0)
            servers.update(reports)
            core.written(number, now)

    for number, (event, which) in enumerate(events):
        now += 1.0
        match event:
            case "change":
                truth[str(which)] = said(f"version {number}")
                core.changed(str(which), now)
            case "send":
                send()
            case "lose":
                under_way.clear()
            case "write":
                write()
            case "cut":
                core.closed()
                under_way.clear()
                core.opened(now)
    for _ in range(4):
        now += AGAIN_S
        send()
        while under_way:
            write()

    assert servers == truth
    assert core.unsaid == 0


# ---- as it travels ---------------------------------------------------------------------------------------------------


def test_a_report_fits_the_columns_that_servers_expect() -> None:
    healthy = AllocReport(
        client_status=ClientStatus.RUNNING,
        task_states={"t": TaskState(restarts=2)},
        deployment_status=AllocDeploymentStatus(healthy=True),
    )
    item, taken = encode_report(7, {an_id(1): healthy, an_id(2): said("bad", ClientStatus.FAILED)})
    report = from_bytes(item, NodeReport)

    check_shape(Report("n", report.ids, report.statuses, report.healths, report.client, report.client_sizes))
    assert (report.number, list(taken)) == (7, [an_id(1), an_id(2)])
    assert (list(report.statuses), list(report.healths)) == ([2, 4], [1, 0])
    assert loads(details_of(healthy))["TaskStates"]["t"]["Restarts"] == 2


def test_details_that_would_not_fit_are_shortened_and_what_does_not_fit_waits_for_the_next_report() -> None:
    events = tuple(TaskEvent(type="Driver", message="x" * 5_000) for _ in range(10))
    long = AllocReport(client_status=ClientStatus.RUNNING, task_states={"t": TaskState(events=events)})
    longer = AllocReport(
        client_status=ClientStatus.FAILED,
        task_states={f"task-{number}": TaskState(failed=True, events=events[:1]) for number in range(5_000)},
    )

    assert len(details_of(long)) < DETAILS_MAX
    assert len(details_of(longer)) <= DETAILS_MAX
    item, taken = encode_report(1, {an_id(number): long for number in range(400)})

    assert len(item) < DATA_BYTES_MAX
    assert 0 < len(taken) < 400 or sum(len(details_of(one)) for one in taken.values()) <= REPORT_BYTES

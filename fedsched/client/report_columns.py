"""Reports as they travel: columns of ids, statuses and healths, and the encoded details of each allocation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import structs

from fedsched.client.journal_records import AllocReport
from fedsched.codec import dumps, to_bytes_sparse
from fedsched.model.ids import uuid_bytes
from fedsched.model.plain_form import to_plain
from fedsched.model.task_state import TaskEvent, TaskState
from fedsched.rpc.methods.node_frames import NodeReport
from fedsched.state.fields import pack
from fedsched.state.tables.alloc_columns import CLIENT_CODES, HEALTHY, UNHEALTHY
from fedsched.wire.limits import DATA_BYTES_MAX

DETAILS_MAX: Final = 32 * 1024
"""Of one allocation; what is longer is said with fewer and shorter events."""
REPORT_BYTES: Final = DATA_BYTES_MAX - 3 * DETAILS_MAX
"""Details in one report; a report is one item of its stream."""
EVENTS_KEPT: Final = 2
TEXT_MAX: Final = 256


def encode_report(number: int, reports: Mapping[str, AllocReport]) -> tuple[bytes, dict[str, AllocReport]]:
    """The report, and those of the allocations that had room in it."""
    taken: dict[str, AllocReport] = {}
    details: list[bytes] = []
    size = 0
    for alloc_id, report in reports.items():
        encoded = details_of(report)
        if taken and size + len(encoded) > REPORT_BYTES:
            break
        taken[alloc_id] = report
        details.append(encoded)
        size += len(encoded)
    client, client_sizes = pack(details)
    healths = bytes(map(_health, taken.values()))
    said = NodeReport(
        number=number,
        ids=b"".join(map(uuid_bytes, taken)),
        statuses=bytes(CLIENT_CODES[report.client_status] for report in taken.values()),
        healths=healths if any(healths) else b"",
        client=client,
        client_sizes=client_sizes,
    )
    return to_bytes_sparse(said), taken


def details_of(report: AllocReport) -> bytes:
    """What servers keep of an allocation beside its columns, under the names of its fields."""
    encoded = _details(report)
    if len(encoded) > DETAILS_MAX:
        encoded = _details(_shortened(report))
    return encoded if len(encoded) <= DETAILS_MAX else _details(_bare(report))


def _details(report: AllocReport) -> bytes:
    whole = to_plain(report)
    return dumps({key: value for key, value in whole.items() if key != "ClientStatus"})


def _health(report: AllocReport) -> int:
    status = report.deployment_status
    if status is None or status.healthy is None:
        return 0
    return HEALTHY if status.healthy else UNHEALTHY


def _shortened(report: AllocReport) -> AllocReport:
    states = {
        name: structs.replace(state, events=tuple(map(_short_event, state.events[-EVENTS_KEPT:])))
        for name, state in report.task_states.items()
    }
    return structs.replace(report, task_states=states, client_description=report.client_description[:TEXT_MAX])


def _short_event(event: TaskEvent) -> TaskEvent:
    return structs.replace(
        event, message=event.message[:TEXT_MAX], display_message=event.display_message[:TEXT_MAX], details={}
    )


def _bare(report: AllocReport) -> AllocReport:
    states = {
        name: TaskState(state=state.state, failed=state.failed, restarts=state.restarts)
        for name, state in list(report.task_states.items())[:100]
    }
    return AllocReport(
        client_status=report.client_status,
        client_description=report.client_description[:TEXT_MAX],
        task_states=states,
        deployment_status=report.deployment_status,
        network_status=report.network_status,
    )

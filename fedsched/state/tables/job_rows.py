"""The rows that are kept of a job: what it is now, its versions, its children in numbers, launches, scaling events."""

from __future__ import annotations

import zlib
from typing import Any, ClassVar, Final

from fedsched.codec import STORED_LIMITS, from_builtins, loads
from fedsched.model.job import Job, JobStatus, JobSubmission
from fedsched.model.scaling import ScalingEvent
from fedsched.state.table import Key, Row, WideRow

PAYLOAD_BYTES_MAX: Final = 16_384
"""What a dispatch may hand over, before it is compressed."""


class JobRow(WideRow):
    """A job as it is now."""

    table: ClassVar[str] = "jobs"

    namespace: str
    id: str
    version: int
    type: str
    status: str
    priority: int = 0
    parent_id: str = ""
    stop: bool = False
    is_template: bool = False
    """Periodic or parameterized: launches others and is never placed itself."""
    had_evaluation: bool = False
    create_index: int = 0
    modify_index: int = 0
    job_modify_index: int = 0
    submit_time_ns: int = 0
    node_pool: str = ""
    is_periodic: bool = False
    dispatch_token: str = ""
    """What its dispatcher named this launch, so that asking again launches nothing more."""

    @property
    def key(self) -> Key:
        return (self.namespace, self.id)

    @property
    def version_key(self) -> Key:
        return (self.namespace, self.id, self.create_index, self.version)


class JobVersionRow(Row):
    """One version of a job."""

    table: ClassVar[str] = "job_versions"

    namespace: str
    id: str
    create_index: int
    """That of the job: tells a job apart from one of the same name that was purged before it."""
    version: int
    spec: bytes
    stop: bool = False
    is_stable: bool = False
    modify_index: int = 0
    job_modify_index: int = 0
    submit_time_ns: int = 0
    tag_name: str = ""
    tag_description: str = ""
    tagged_time_ns: int = 0
    submission: bytes = b""
    """The encoded text that it came from, if its user sent that along."""

    @property
    def key(self) -> Key:
        return (self.namespace, self.id, self.create_index, self.version)

    def job(self, *, status: str = JobStatus.PENDING.value) -> Job:
        """The whole record of this version."""
        fields: dict[str, Any] = loads(self.spec, STORED_LIMITS)
        if fields.get("Payload"):
            fields["Payload"] = _unpacked(fields["Payload"])
        fields.update(
            Stop=self.stop,
            Status=status,
            Stable=self.is_stable,
            Version=self.version,
            SubmitTime=self.submit_time_ns,
            CreateIndex=self.create_index,
            ModifyIndex=self.modify_index,
            JobModifyIndex=self.job_modify_index,
        )
        if self.tag_name:
            tag = {"Name": self.tag_name, "Description": self.tag_description, "TaggedTime": self.tagged_time_ns}
            fields["VersionTag"] = tag
        return from_builtins(fields, Job)

    def source(self) -> JobSubmission | None:
        """The text it came from; None if nobody sent it along."""
        if not self.submission:
            return None
        return from_builtins(loads(self.submission, STORED_LIMITS), JobSubmission)


class JobChildrenRow(Row):
    """The children of one job in numbers."""

    table: ClassVar[str] = "job_children"

    namespace: str
    parent_id: str
    pending: int = 0
    running: int = 0
    dead: int = 0
    modify_index: int = 0

    @property
    def key(self) -> Key:
        return (self.namespace, self.parent_id)


class PeriodicLaunchRow(Row):
    """When a periodic job was last launched."""

    table: ClassVar[str] = "periodic_launches"

    namespace: str
    job_id: str
    launch_ns: int = 0
    create_index: int = 0
    modify_index: int = 0

    @property
    def key(self) -> Key:
        return (self.namespace, self.job_id)


class ScalingEventsRow(Row):
    """The latest scaling events of one group, newest first."""

    table: ClassVar[str] = "scaling_events"

    namespace: str
    job_id: str
    group: str
    body: bytes = b""
    create_index: int = 0
    modify_index: int = 0

    @property
    def key(self) -> Key:
        return (self.namespace, self.job_id, self.group)

    def events(self) -> tuple[ScalingEvent, ...]:
        return from_builtins(loads(self.body, STORED_LIMITS), tuple[ScalingEvent, ...])


def _unpacked(payload: bytes) -> bytes:
    """A payload as its dispatcher sent it; one that was never compressed stays as it is."""
    try:
        return zlib.decompressobj().decompress(payload, PAYLOAD_BYTES_MAX)
    except zlib.error:
        return payload

"""Services that tasks and groups offer, their checks, and the registry's rows."""

from __future__ import annotations

from typing import Annotated, ClassVar

from fedsched.model.identity import WorkloadIdentity
from fedsched.model.record import (
    EMPTY,
    FreeForm,
    Index,
    InJson,
    MaybeSeconds,
    Named,
    Record,
    Seconds,
    StringMap,
    UpdateClass,
)


class CheckRestart(Record):
    """When a failing check restarts its task."""

    limit: Annotated[int, "Failures in a row before a restart; 0 is never."] = 0
    grace_s: Annotated[MaybeSeconds, "How long after a start failures do not count."] = 1.0
    ignore_warnings: bool = False


class ServiceCheck(Record):
    """A test of whether a service works."""

    diff_key: ClassVar[str] = "name"

    name: str = ""
    type: Annotated[str, "`http`, `tcp`, `script` or `grpc`."] = ""
    command: str = ""
    args: tuple[str, ...] = ()
    path: str = ""
    protocol: str = ""
    port_label: str = ""
    expose: bool = False
    address_mode: str = ""
    interval_s: Seconds = 0.0
    timeout_s: Seconds = 0.0
    advertise: Annotated[str, InJson.INPUT_ONLY, "For foreign providers."] = ""
    initial_status: str = ""
    notes: str = ""
    tls_server_name: str = ""
    tls_skip_verify: bool = False
    method: str = ""
    header: dict[str, tuple[str, ...]] = EMPTY
    check_restart: CheckRestart | None = None
    grpc_service: str = ""
    grpc_use_tls: bool = False
    task_name: str = ""
    success_before_passing: int = 0
    failures_before_critical: int = 0
    failures_before_warning: int = 0
    body: str = ""
    on_update: Annotated[str, "`require_healthy`, `ignore_warnings` or `ignore`."] = "require_healthy"


class ServiceWeights(Record):
    """Load-balancing weights; kept for foreign providers."""

    passing: int = 1
    warning: int = 1


class Service(Record):
    """Something that a group or a task offers under a name.

    `connect` and `tagged_addresses` belong to Consul: kept as data, served back, not acted upon.
    """

    diff_key: ClassVar[str] = "name"

    name: str = ""
    task_name: str = ""
    port_label: str = ""
    address_mode: str = "auto"
    address: str = ""
    enable_tag_override: bool = False
    tags: tuple[str, ...] = ()
    canary_tags: tuple[str, ...] = ()
    check_restart: Annotated[CheckRestart | None, InJson.INPUT_ONLY, "For checks that say nothing."] = None
    checks: Annotated[tuple[ServiceCheck, ...], Named("Check")] = ()
    connect: Annotated[FreeForm | None, UpdateClass.DESTRUCTIVE] = None
    meta: StringMap = EMPTY
    canary_meta: StringMap = EMPTY
    weights: ServiceWeights | None = None
    tagged_addresses: StringMap = EMPTY
    namespace: str = ""
    on_update: str = "require_healthy"
    provider: str = ""
    cluster: str = ""
    identity: WorkloadIdentity | None = None
    kind: str = ""


class ServiceRegistration(Record):
    """One allocation's entry in the registry."""

    id: str
    service_name: str = ""
    namespace: str = ""
    node_id: str = ""
    datacenter: str = ""
    job_id: str = ""
    alloc_id: str = ""
    tags: Annotated[tuple[str, ...], InJson.KEEP_EMPTY] = ()
    address: str = ""
    port: int = 0
    create_index: Index = 0
    modify_index: Index = 0

"""All commands there are, by the names they have in the log, and the envelope that each travels in.

A command is encoded once, by its proposer; the bytes stay as they are in the log, on the wire and on every follower.
Names and meanings are for ever: old logs must replay. A command that came later says so with `since`, and is carried
out only once that version has been enabled, which the leader asks for when every server knows it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Final, NamedTuple

import msgspec

from fedsched.codec import STORED_LIMITS, CodecError, dumps, from_builtins, loads, to_builtins
from fedsched.state.fields import Command, Count
from fedsched.state.result import Result
from fedsched.state.tables import (
    alloc_updates,
    deployment_updates,
    deployments,
    evaluations,
    jobs,
    launches,
    meta,
    namespaces,
    node_updates,
    nodes,
    plans,
    rollout_steps,
    rollouts,
    scaling_events,
    services,
    variables,
)
from fedsched.state.tables.sessions import RequestId
from fedsched.state.transaction import Transaction

SESSION_BYTES_MAX: Final = 64


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """A command with its time and, if it may be sent again, its request id."""

    command: Command
    time_ns: int
    """Stamped by the proposer; the only clock that `apply` knows."""
    request: RequestId | None = None


class CommandKind(NamedTuple):
    """One command: its record, what carries it out, and since which version it may be used."""

    record: type[Command]
    apply: Callable[[Transaction, Any], Result]
    since: int = 1


COMMANDS: Final[dict[str, CommandKind]] = {
    "cluster-begin": CommandKind(meta.ClusterBegin, meta.apply_begin),
    "enable-version": CommandKind(meta.EnableVersion, meta.apply_enable),
    "office-begin": CommandKind(plans.OfficeBegin, plans.apply_office),
    "scheduler-config-set": CommandKind(meta.SchedulerConfigSet, meta.apply_scheduler_config),
    "autopilot-config-set": CommandKind(meta.AutopilotConfigSet, meta.apply_autopilot_config),
    "namespace-upsert": CommandKind(namespaces.NamespaceUpsert, namespaces.apply_namespace_upsert),
    "namespace-delete": CommandKind(namespaces.NamespaceDelete, namespaces.apply_namespace_delete),
    "node-pool-upsert": CommandKind(namespaces.NodePoolUpsert, namespaces.apply_pool_upsert),
    "node-pool-delete": CommandKind(namespaces.NodePoolDelete, namespaces.apply_pool_delete),
    "job-register": CommandKind(jobs.JobRegister, jobs.apply_register),
    "job-deregister": CommandKind(jobs.JobDeregister, jobs.apply_deregister),
    "job-tag": CommandKind(jobs.JobTag, jobs.apply_tag),
    "job-stable": CommandKind(jobs.JobStable, jobs.apply_stable),
    "job-scale": CommandKind(scaling_events.JobScale, scaling_events.apply_scale),
    "job-dispatch": CommandKind(launches.JobDispatch, launches.apply_dispatch),
    "periodic-launch": CommandKind(launches.PeriodicLaunch, launches.apply_launch),
    "evaluations-upsert": CommandKind(evaluations.EvaluationsUpsert, evaluations.apply_upsert),
    "deployments-upsert": CommandKind(deployments.DeploymentsUpsert, deployments.apply_upsert),
    "deployment-status-update": CommandKind(deployment_updates.DeploymentStatusUpdate, deployment_updates.apply_status),
    "deployment-promote": CommandKind(deployment_updates.DeploymentPromote, deployment_updates.apply_promote),
    "deployment-alloc-health": CommandKind(deployment_updates.DeploymentAllocHealth, deployment_updates.apply_health),
    "node-register": CommandKind(node_updates.NodeRegister, node_updates.apply_register),
    "node-status-update": CommandKind(node_updates.NodeStatusUpdate, node_updates.apply_status),
    "node-eligibility-update": CommandKind(node_updates.NodeEligibilityUpdate, node_updates.apply_eligibility),
    "node-drain-update": CommandKind(node_updates.NodeDrainUpdate, node_updates.apply_drain),
    "node-upsert": CommandKind(nodes.NodeUpsert, nodes.apply_upsert),
    "node-deregister": CommandKind(nodes.NodeDeregister, nodes.apply_deregister),
    "plan-apply": CommandKind(plans.PlanApply, plans.apply_plan),
    "alloc-status-update": CommandKind(alloc_updates.AllocStatusUpdate, alloc_updates.apply_status),
    "alloc-transition": CommandKind(alloc_updates.AllocTransition, alloc_updates.apply_transition),
    "reap": CommandKind(alloc_updates.Reap, alloc_updates.apply_reap),
    "services-register": CommandKind(services.ServicesRegister, services.apply_register),
    "services-deregister": CommandKind(services.ServicesDeregister, services.apply_deregister),
    "service-delete": CommandKind(services.ServiceDelete, services.apply_delete),
    "variable-put": CommandKind(variables.VariablePut, variables.apply_put),
    "variable-delete": CommandKind(variables.VariableDelete, variables.apply_delete),
    "rollout-write": CommandKind(rollouts.RolloutWrite, rollouts.apply_write),
    "rollout-step": CommandKind(rollout_steps.RolloutStepCarry, rollout_steps.apply_step),
    "rollouts-reap": CommandKind(rollouts.RolloutsReap, rollouts.apply_reap),
}

NAMES: Final = {kind.record: name for name, kind in COMMANDS.items()}


class _Head(msgspec.Struct, frozen=True):
    """The envelope as it is encoded, short names because there is one in every entry."""

    n: Annotated[str, msgspec.Meta(max_length=64)]
    t: Count
    s: Annotated[bytes, msgspec.Meta(min_length=1, max_length=SESSION_BYTES_MAX)] | None = None
    q: Annotated[int, msgspec.Meta(ge=1, le=1 << 62)] = 1
    a: Annotated[int, msgspec.Meta(ge=0, le=1 << 62)] = 0
    c: Any = None


class UnknownCommand(CodecError):
    """A well-formed entry with a command of a name that this code does not have."""


def encode_command(envelope: Envelope) -> bytes:
    """The bytes of an entry. Raises `CodecError` for a command that could not be read back."""
    head: dict[str, Any] = {"n": NAMES[type(envelope.command)], "t": envelope.time_ns}
    if envelope.request is not None:
        head |= {"s": envelope.request.session, "q": envelope.request.sequence, "a": envelope.request.acked}
    head["c"] = to_builtins(envelope.command)
    data = dumps(head)
    decode_command(data)  # a stored command that cannot be read would bother every server for ever
    return data


def decode_command(data: bytes) -> Envelope:
    """The envelope in these bytes; `CodecError` if there is none."""
    head = from_builtins(loads(data, STORED_LIMITS), _Head)
    kind = COMMANDS.get(head.n)
    if kind is None:
        raise UnknownCommand(f"unknown command {head.n!r}", hint="it may come from a newer version")
    command = from_builtins(head.c, kind.record)
    request = RequestId(head.s, head.q, head.a) if head.s is not None else None
    return Envelope(command=command, time_ns=head.t, request=request)

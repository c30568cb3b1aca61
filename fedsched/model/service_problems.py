"""What can be wrong with services and their checks.

A service without a provider, or of provider `consul`, is served by the built-in registry too; what only Consul knows
is refused where the job asks for the built-in one by name, and kept for the others.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from fedsched.model.group import TaskGroup
from fedsched.model.job_defaults import CONSUL, NATIVE_PROVIDERS
from fedsched.model.network_problems import port_labels, ports_of
from fedsched.model.problem import Problem, one_of
from fedsched.model.service import Service, ServiceCheck
from fedsched.model.task import Task
from fedsched.model.units import format_duration

MIN_CHECK_S = 1.0
"""Shorter intervals and timeouts would have the checks outweigh what they check."""

NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?")
ADDRESS_MODES = frozenset({"", "auto", "host", "driver", "alloc", "alloc_ipv6"})
ON_UPDATE = frozenset({"require_healthy", "ignore_warnings", "ignore"})
CHECK_TYPES = frozenset({"grpc", "http", "script", "tcp"})
STATUSES = frozenset({"", "passing", "warning", "critical"})

Found = Iterator[Problem]


def service_problems(group: TaskGroup, path: str) -> Found:
    """Check the services of a group: each on its own, then against one another."""
    for i, service in enumerate(group.services):
        yield from _service(service, f"{path}.Services[{i}]", None, group)
    yield from _providers(group, path)
    yield from _unique(group, path)


def task_service_problems(task: Task, group: TaskGroup, path: str) -> Found:
    """Check the services of one task."""
    for i, service in enumerate(task.services):
        yield from _service(service, f"{path}.Services[{i}]", task, group)


def _service(service: Service, path: str, task: Task | None, group: TaskGroup) -> Found:
    causes = (
        *_naming(service, path),
        *_address(service, path, task, group),
        *(
            problem
            for i, check in enumerate(service.checks)
            for problem in _check(check, service, f"{path}.Checks[{i}]", task, group)
        ),
    )
    if causes:
        yield Problem(path, f"Service {service.name} validation failed", causes)


def _naming(service: Service, path: str) -> Found:
    fixed = re.sub(r"\$\{[^}]*\}", "a", service.name)
    if not NAME.fullmatch(fixed):
        text = f"Service name {service.name!r} must be letters, digits and dashes, at most 63"
        yield Problem(f"{path}.Name", text, hint="it becomes a DNS label (RFC 1123)")
    if service.provider not in NATIVE_PROVIDERS | {"", CONSUL}:
        hint = one_of(service.provider, ("nomad", CONSUL))
        yield Problem(f"{path}.Provider", f'Service provider "{service.provider}" is not known', hint=hint)
    if service.on_update not in ON_UPDATE | {""}:
        text = f'Service on_update must be one of the known ones, not "{service.on_update}"'
        yield Problem(f"{path}.OnUpdate", text, hint=one_of(service.on_update, ON_UPDATE))
    if service.connect is not None and service.provider in NATIVE_PROVIDERS:
        yield Problem(
            f"{path}.Connect", f'Service {service.name} with provider "{service.provider}" cannot use connect'
        )


def _address(service: Service, path: str, task: Task | None, group: TaskGroup) -> Found:
    mode = service.address_mode
    if mode not in ADDRESS_MODES:
        text = f'Service address_mode must be one of the known ones, not "{mode}"'
        yield Problem(f"{path}.AddressMode", text, hint=one_of(mode, ADDRESS_MODES - {""}))
    elif mode == "driver" and task is None:
        yield Problem(f"{path}.AddressMode", "Service address_mode driver is for services of a task")
    if service.address and mode not in ("", "auto"):
        yield Problem(f"{path}.Address", f'Service address may only be set with address_mode auto, not "{mode}"')
    if task is not None and service.port_label:
        yield from _port(service.port_label, mode, f"{path}.PortLabel", task, group)


def _port(label: str, mode: str, path: str, task: Task, group: TaskGroup) -> Found:
    known = port_labels(group) | {port.label for network in task.resources.networks for port in ports_of(network)}
    if label in known or "${" in label:
        return
    if label.isdecimal():
        if mode != "driver":
            yield Problem(
                path, f'port "{label}" is a number, which needs address_mode driver', hint=_labels(label, known)
            )
        elif not 1 <= int(label[:6]) <= 65_535:
            yield Problem(path, f'port "{label}" is outside 1 to 65535')
    elif mode != "driver":
        yield Problem(path, f'port label "{label}" referenced by a service does not exist', hint=_labels(label, known))


def _labels(label: str, known: frozenset[str] | set[str]) -> str:
    return one_of(label, known) if known else f'give the group a network block with port "{label}"'


def _check(check: ServiceCheck, service: Service, path: str, task: Task | None, group: TaskGroup) -> Found:
    causes = (
        *_check_kind(check, service, path),
        *_check_script(check, service, path, task, group),
        *_check_times(check, path),
        *_check_words(check, path),
    )
    if causes:
        yield Problem(path, f"Check {check.name} invalid", causes)


def _check_kind(check: ServiceCheck, service: Service, path: str) -> Found:
    kind = check.type.lower()
    if kind not in CHECK_TYPES:
        text = f'invalid check type "{check.type}", must be one of {", ".join(sorted(CHECK_TYPES))}'
        yield Problem(f"{path}.Type", text, hint=one_of(kind, CHECK_TYPES))
    if kind == "http":
        if not check.path:
            yield Problem(f"{path}.Path", "http type must have http path", hint='such as path = "/health"')
        elif "://" in check.path.partition("?")[0]:
            yield Problem(f"{path}.Path", f'http type must have relative http path, not "{check.path}"')
        if check.protocol not in ("", "http", "https"):
            yield Problem(f"{path}.Protocol", f'check protocol must be http or https, not "{check.protocol}"')
    if not service.port_label and not check.port_label and kind in ("grpc", "http", "tcp"):
        yield Problem(f"{path}.PortLabel", f"{kind} check has no port, and its service has none either")
    if service.provider in NATIVE_PROVIDERS:
        yield from _only_foreign(check, path)


def _check_script(check: ServiceCheck, service: Service, path: str, task: Task | None, group: TaskGroup) -> Found:
    """A script runs inside a task: it needs a command, and a group's has to say which task."""
    if check.type.lower() != "script":
        return
    if not check.command:
        yield Problem(f"{path}.Command", "script type must have a command")
    named = check.task_name or service.task_name
    known = [one.name for one in group.tasks]
    if task is None and named not in known:
        text = f'script check must name a task of the group to run in, not "{named}"'
        yield Problem(f"{path}.TaskName", text, hint=one_of(named, known))


def _only_foreign(check: ServiceCheck, path: str) -> Found:
    said = {"Expose": check.expose, "FailuresBeforeWarning": check.failures_before_warning}
    for name, value in said.items():
        if value:
            yield Problem(f"{path}.{name}", f"{name} may only be set for Consul service checks")


def _check_times(check: ServiceCheck, path: str) -> Found:
    for name, value in (("Interval", check.interval_s), ("Timeout", check.timeout_s)):
        if value == 0:
            yield Problem(f"{path}.{name}", f"missing required value {name.lower()}. {_least(name)}")
        elif value < MIN_CHECK_S:
            yield Problem(f"{path}.{name}", f"{name.lower()} ({format_duration(value)}) is too low. {_least(name)}")
    restart = check.check_restart
    if restart is not None and restart.limit < 0:
        yield Problem(
            f"{path}.CheckRestart.Limit", f"limit must be greater than or equal to 0 but found {restart.limit}"
        )
    if restart is not None and restart.grace_s is not None and restart.grace_s < 0:
        text = f"grace period must be greater than or equal to 0 but found {format_duration(restart.grace_s)}"
        yield Problem(f"{path}.CheckRestart.Grace", text)


def _least(name: str) -> str:
    return f"{name} cannot be less than {format_duration(MIN_CHECK_S)}"


def _check_words(check: ServiceCheck, path: str) -> Found:
    if check.initial_status not in STATUSES:
        text = f'invalid initial check state "{check.initial_status}"'
        yield Problem(f"{path}.InitialStatus", text, hint=one_of(check.initial_status, STATUSES - {""}))
    if check.on_update not in ON_UPDATE | {""}:
        text = f'invalid check on_update "{check.on_update}"'
        yield Problem(f"{path}.OnUpdate", text, hint=one_of(check.on_update, ON_UPDATE))


def _providers(group: TaskGroup, path: str) -> Found:
    """Two registries in one group would leave half of its services without the health of the others."""
    used = {service.provider or CONSUL for service in _all_services(group)}
    used = {"nomad" if provider in NATIVE_PROVIDERS else provider for provider in used}
    if len(used) > 1:
        text = "Multiple service providers used: task group services must use the same provider"
        yield Problem(f"{path}.Services", text, hint=f"found {' and '.join(sorted(used))}")


def _unique(group: TaskGroup, path: str) -> Found:
    seen: set[tuple[str, str, str]] = set()
    for where, owner, service in _placed_services(group, path):
        key = (service.name, owner, service.port_label)
        if key in seen:
            text = f"Services are not unique: {owner or 'group'}->{service.name}:{service.port_label}"
            yield Problem(f"{where}.Name", text, hint="give one of them another name or port")
        seen.add(key)


def _all_services(group: TaskGroup) -> Iterator[Service]:
    return (service for _, _, service in _placed_services(group, ""))


def _placed_services(group: TaskGroup, path: str) -> Iterator[tuple[str, str, Service]]:
    for i, service in enumerate(group.services):
        yield f"{path}.Services[{i}]", "", service
    for j, task in enumerate(group.tasks):
        for i, service in enumerate(task.services):
            yield f"{path}.Tasks[{j}].Services[{i}]", task.name, service

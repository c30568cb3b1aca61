"""The broker's figures for operators, read off its cores whenever somebody looks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from fedsched.telemetry.metrics import Registry, gauge

if TYPE_CHECKING:
    from fedsched.server.leader.broker import BrokerService

_BROKER: Final = {
    name: gauge(f"broker.{name}", text, nomad=f"nomad.nomad.broker.total_{name}")
    for name, text in (
        ("ready", "evaluations waiting for a worker"),
        ("unacked", "evaluations in the hands of a worker"),
        ("pending", "evaluations waiting for another one of their job"),
        ("waiting", "evaluations waiting for their time"),
        ("cancelable", "evaluations overtaken by a newer one and not yet stored as cancelled"),
        ("failed", "evaluations delivered too often and not yet stored as failed"),
    )
}
_BY_TYPE: Final = gauge("broker.ready_by_type", "evaluations waiting for a worker, by job type", labels=("type",))
_BLOCKED: Final = {
    name: gauge(f"blocked.{name}", text, nomad=f"nomad.nomad.blocked_evals.total_{name}")
    for name, text in (
        ("blocked", "evaluations waiting for room"),
        ("escaped", "of these, those to which every change is news"),
        ("by_quota", "of these, those that wait for a quota"),
        ("restoring", "of these, those to be looked at again after a change of leader"),
    )
}


def watch_broker(broker: BrokerService, registry: Registry) -> None:
    """Have the registry read these figures before it shows them; all are zero where no office is held."""
    totals = {name: registry.gauge(spec) for name, spec in _BROKER.items()}
    blocked = {name: registry.gauge(spec) for name, spec in _BLOCKED.items()}
    by_type = registry.gauges(_BY_TYPE)

    def read() -> None:
        found = broker.core.statistics()
        for name, total in totals.items():
            total.set(getattr(found, name))
        for kind in {*found.ready_by_type, *(labels[0] for labels in by_type.series)}:
            by_type.labels(kind).set(found.ready_by_type.get(kind, 0))
        for name, part in blocked.items():
            part.set(getattr(broker.blocked.statistics(), name))

    registry.before_showing(read)

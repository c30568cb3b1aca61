"""Runs the deployments core while this server leads."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from fedsched.server.desk import Desk
from fedsched.server.leader.core_service import CoreService, Duty
from fedsched.server.leader.deployment_rules import (
    DeploymentEffect,
    FailDeployment,
    MoveOn,
    PromoteDeployment,
    command_of,
)
from fedsched.server.leader.deployments_core import DeploymentsCore
from fedsched.state.changes import Changes
from fedsched.state.fields import Command
from fedsched.state.store import Store
from fedsched.telemetry.log import Logger


class DeploymentsService(CoreService):
    """Sees every deployment to its end."""

    def __init__(self, desk: Desk) -> None:
        super().__init__(desk, "deployments")

    def begin(self) -> Duty:
        return _Duty(self._desk.env.new_id, self._desk.log)


class _Duty:
    def __init__(self, new_id: Callable[[], str], log: Logger) -> None:
        self._core = DeploymentsCore()
        self._new_id = new_id
        self._log = log

    def decide(self, store: Store, changes: list[Changes], now_ns: int) -> Iterable[Command]:
        self._core.note(store, changes)
        effects = self._core.review(store, now_ns, self._new_id)
        for effect in effects:
            self._tell(effect)
        return [command_of(effect) for effect in effects]

    def wake_at_ns(self) -> int | None:
        return self._core.wake_at_ns()

    def _tell(self, effect: DeploymentEffect) -> None:
        match effect:
            case FailDeployment(deployment_id, description):
                self._log.info("deployment_failed", deployment=deployment_id, why=description)
            case PromoteDeployment(deployment_id):
                self._log.info("deployment_promoted_itself", deployment=deployment_id)
            case MoveOn(deployment_id, is_done):
                self._log.info("deployment_unblocked", deployment=deployment_id, is_done=is_done)
            case _:
                pass

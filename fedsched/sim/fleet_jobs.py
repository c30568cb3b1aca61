"""The jobs that people of a simulated region register: one of each kind by its number, everything else by chance."""

from __future__ import annotations

from typing import Any, Final

from fedsched.env.env import Chance
from fedsched.model.constraint import Constraint
from fedsched.model.group import TaskGroup
from fedsched.model.job import Job, ParameterizedJobConfig, PeriodicConfig
from fedsched.model.network import NetworkResource, Port
from fedsched.model.policies import (
    DisconnectStrategy,
    EphemeralDisk,
    ReconcileOption,
    ReschedulePolicy,
    UpdateStrategy,
)
from fedsched.model.resources import RequestedDevice, Resources
from fedsched.model.task import Task
from fedsched.model.volume import VolumeRequest

KINDS: Final = ("service", "service", "service", "batch", "system", "sysbatch", "periodic", "parameterized")
"""By the job's number, so that a job's type never changes."""
SERVICES: Final = tuple(number for number, kind in enumerate(KINDS) if kind == "service")
PERIODIC: Final = KINDS.index("periodic")
PARAMETERIZED: Final = KINDS.index("parameterized")
NEEDED: Final = {
    "system": "system jobs",
    "sysbatch": "system jobs",
    "periodic": "periodic",
    "parameterized": "dispatches",
}
"""Features without which there are no jobs of a kind."""
ONE_SHOT: Final = ("batch", "periodic", "parameterized", "sysbatch")
PROGRESS_S: Final = 20.0


def job_id(number: int) -> str:
    return f"j{number}"


class JobMaker:
    """Draws jobs."""

    def __init__(self, chance: Chance, features: frozenset[str]) -> None:
        self._chance = chance
        self._has = features
        self.numbers = [number for number, kind in enumerate(KINDS) if NEEDED.get(kind, "") in {"", *features}]

    def some(self) -> int:
        return self._chance.choice(self.numbers)

    def draw(self, number: int) -> Job:
        chance, kind = self._chance, KINDS[number]
        job_type = "batch" if kind in ("periodic", "parameterized") else kind
        name = job_id(number)
        return Job(
            id=name,
            name=name,
            region="global",
            type=job_type,
            priority=chance.choice((20, 45, 50, 55, 80)),
            datacenters=("*",),
            node_pool="default",
            meta={"try": str(chance.randrange(0, 3))},
            task_groups=(self._group(kind),),
            periodic=self._periodic() if kind == "periodic" else None,
            parameterized_job=ParameterizedJobConfig() if kind == "parameterized" else None,
        )

    def _group(self, kind: str) -> TaskGroup:
        chance = self._chance
        fields: dict[str, Any] = {}
        if kind in ("service", "system"):
            fields["update"] = self._update(kind)
        if kind == "service":
            fields["reschedule_policy"] = ReschedulePolicy(
                delay_s=5.0, delay_function="constant", unlimited=True, max_delay_s=0.0
            )
            if "disconnects" in self._has and chance.random() < 0.7:
                fields["disconnect"] = self._disconnect()
        if chance.random() < 0.3:
            rack = f"r{chance.randrange(0, 4)}"
            fields["constraints"] = (Constraint(l_target="${meta.rack}", r_target=rack),)
        if "networks" in self._has and chance.random() < 0.5:
            fields["networks"] = (self._network(),)
        if "volumes" in self._has and chance.random() < 0.3:
            read_only = chance.random() < 0.5
            fields["volumes"] = {"v": VolumeRequest(name="v", type="host", source="data", read_only=read_only)}
        return TaskGroup(
            name="g",
            count=1 if kind in ("system", "sysbatch") else chance.randrange(0, 7),
            tasks=(self._task(),),
            ephemeral_disk=EphemeralDisk(size_mb=chance.choice((300, 300, 2000))),
            **fields,
        )

    def _task(self) -> Task:
        chance = self._chance
        fields: dict[str, Any] = {"cpu": chance.choice((50, 200, 400, 700))}
        if "cores" in self._has and chance.random() < 0.4:
            fields.update(cpu=0, cores=chance.choice((1, 1, 2)))
        if "devices" in self._has and chance.random() < 0.3:
            fields["devices"] = (RequestedDevice(name="gpu", count=1),)
        if "memory" in self._has and chance.random() < 0.5:
            fields["memory_max_mb"] = 800
        resources = Resources(memory_mb=chance.choice((32, 128, 400)), **fields)
        config = {"run_for": "10s", "stdout_string": str(chance.randrange(0, 3))}
        return Task(name="main", driver="mock_driver", config=config, resources=resources)

    def _network(self) -> NetworkResource:
        chance = self._chance
        static = (Port(label="http", value=8080 + chance.randrange(0, 3)),) if chance.random() < 0.5 else ()
        dynamic = (Port(label="rpc"),) if chance.random() < 0.7 else ()
        return NetworkResource(mode="host", reserved_ports=static, dynamic_ports=dynamic)

    def _update(self, kind: str) -> UpdateStrategy:
        chance = self._chance
        canary = chance.choice((0, 1)) if kind == "service" and "canaries" in self._has else 0
        return UpdateStrategy(
            max_parallel=chance.choice((1, 2)),
            min_healthy_time_s=1.0,
            healthy_deadline_s=15.0,
            progress_deadline_s=PROGRESS_S,
            canary=canary,
            auto_promote=bool(canary) and chance.random() < 0.5,
            auto_revert=chance.random() < 0.3,
        )

    def _disconnect(self) -> DisconnectStrategy:
        chance = self._chance
        if chance.random() < 0.25:
            return DisconnectStrategy(stop_on_client_after_s=chance.choice((2.0, 8.0)))
        return DisconnectStrategy(
            lost_after_s=chance.choice((8.0, 30.0, 120.0)),
            replace=chance.choice((None, True, False)),
            reconcile=chance.choice([option.value for option in ReconcileOption]),
        )

    def _periodic(self) -> PeriodicConfig:
        zone = "Europe/Berlin" if "summer time" in self._has else "UTC"
        return PeriodicConfig(specs=("* * * * *",), prohibit_overlap=self._chance.random() < 0.5, time_zone=zone)

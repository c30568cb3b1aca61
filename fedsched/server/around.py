"""Everything around scheduling on one server: the leader's services for nodes, deployments, launches and clean-up, and
the endpoints that lean on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from fedsched.rpc.method import Method
from fedsched.rpc.server_side import Handler
from fedsched.scheduler.fleet import Fleet
from fedsched.scheduler.schedule import BUILT_IN, MakeScheduling
from fedsched.server.desk import Desk
from fedsched.server.duties import DryRun, Duties, NotYet
from fedsched.server.endpoints.alloc import AllocEndpoint
from fedsched.server.endpoints.deployment import DeploymentEndpoint
from fedsched.server.endpoints.job_extras import JobExtrasEndpoint
from fedsched.server.endpoints.node import NodeEndpoint
from fedsched.server.endpoints.operator import OperatorEndpoint
from fedsched.server.endpoints.places import PlacesEndpoint
from fedsched.server.endpoints.rollout import RolloutEndpoint
from fedsched.server.endpoints.rollout_part import RolloutPartEndpoint
from fedsched.server.endpoints.service import ServiceEndpoint
from fedsched.server.endpoints.variable import VariableEndpoint
from fedsched.server.endpoints.why import WhyEndpoint
from fedsched.server.leader.client_updates import ClientUpdatesService
from fedsched.server.leader.deployments import DeploymentsService
from fedsched.server.leader.drain import DrainService
from fedsched.server.leader.gc import GcService
from fedsched.server.leader.heartbeats import HeartbeatsService
from fedsched.server.leader.office import LeaderService
from fedsched.server.leader.periodic import PeriodicService
from fedsched.server.leader.rollouts import RolloutsService
from fedsched.server.multiregion_jobs import MultiregionJobs
from fedsched.server.region_calls import RegionCalls
from fedsched.server.reports import Reports, Send
from fedsched.server.served_types import Served
from fedsched.server.uplinks import Uplinks
from fedsched.server.waits import Look


class Looking(Protocol):
    """The handlers of one noun, and what their answers depend on."""

    def handlers(self) -> Mapping[Method[Any, Any], Handler]: ...

    def looks(self) -> Mapping[Method[Any, Any], Look]: ...


class Around:
    """One server's part of it."""

    def __init__(
        self,
        desk: Desk,
        dry_run: DryRun | None = None,
        fleet: Callable[[], Fleet] | None = None,
        *,
        served: Served | None = None,
        schedulers: Mapping[str, MakeScheduling] = BUILT_IN,
        send_reports: Send,
        calls: RegionCalls,
    ) -> None:
        heartbeats, updates, gc = HeartbeatsService(desk), ClientUpdatesService(desk), GcService(desk)
        self.duties = Duties(
            heartbeats=heartbeats,
            client_updates=updates,
            dry_run=dry_run or NotYet("dry runs").dry_run,
            collect=gc.force,
        )
        rollouts = RolloutsService(desk, calls)
        self.multiregion = MultiregionJobs(desk, calls)
        self.uplinks = Uplinks(desk.machine, Reports(send_reports, desk.log))
        self.services: list[LeaderService] = [
            updates,
            DeploymentsService(desk),
            DrainService(desk),
            PeriodicService(desk),
            rollouts,
            gc,
            heartbeats,
        ]
        """In the order in which a new leader starts them; timers of silent nodes come last."""
        self.endpoints: list[Looking] = [
            NodeEndpoint(desk, self.duties, self.uplinks),
            AllocEndpoint(desk),
            DeploymentEndpoint(desk, calls),
            JobExtrasEndpoint(desk, self.duties, served, self.multiregion),
            RolloutEndpoint(desk, rollouts, self.multiregion, calls),
            RolloutPartEndpoint(desk, served, heard=rollouts.heard),
            OperatorEndpoint(desk, self.duties),
            PlacesEndpoint(desk),
            ServiceEndpoint(desk),
            VariableEndpoint(desk),
        ]
        if fleet is not None:
            self.endpoints.append(WhyEndpoint(desk, fleet, served=served, schedulers=schedulers))

    def looks(self) -> dict[Method[Any, Any], Look]:
        """What the answers of all these endpoints depend on."""
        return {method: look for endpoint in self.endpoints for method, look in endpoint.looks().items()}

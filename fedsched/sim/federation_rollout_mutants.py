"""Bugs planted in what servers do about jobs of several regions, and in what a new leader does about tasks.

The code that is changed is that of real servers: services, endpoints, deeds, state. `federation_mutants` hunts them
together with all others between regions.
"""

from __future__ import annotations

from heapq import heappush
from typing import Any, Final, NamedTuple

from msgspec import structs

from fedsched.federation import rollout_rules
from fedsched.federation.rollout_core import RolloutCore
from fedsched.rpc.server_side import CallContext
from fedsched.server.leader.heartbeats_core import HeartbeatsCore
from fedsched.server.leader.rollouts import RolloutsService
from fedsched.server.multiregion_jobs import MultiregionJobs
from fedsched.server.rollout_deeds import Deeds
from fedsched.sim.fleet_mutants import Patch
from fedsched.state.changes import Changes
from fedsched.state.tables import deployment_updates, deployments, rollout_steps
from fedsched.state.tables.rollouts import put_share


class RolloutMutant(NamedTuple):
    """One bug, and which promises may be the first to notice."""

    name: str
    patches: tuple[Patch, ...]
    broken: tuple[str, ...]
    is_quick: bool = False


def _one(
    name: str, where: Any, attribute: str, instead: Any, broken: tuple[str, ...], *, quick: bool = False
) -> RolloutMutant:
    return RolloutMutant(name, (Patch(where, attribute, instead),), broken, quick)


_LOOK: Final = RolloutsService._look


def _only_what_is_new(self: RolloutsService, gathered: list[Changes]) -> None:
    _LOOK(self, [changes for changes in gathered if not changes.is_everything])


_PREPARED: Final = Deeds._prepared


def _begins_at_once(self: Deeds, *given: Any) -> Any:
    carry = _PREPARED(self, *given)
    assert carry.deployment is not None
    return structs.replace(carry, deployment=structs.replace(carry.deployment, status="running"))


_FAILED: Final = Deeds._failed


def _fails_in_words_only(self: Deeds, *given: Any) -> Any:
    return structs.replace(_FAILED(self, *given), status=None, revert=None)


_PUT_SHARE: Final = put_share


def _first_share_stays(tx: Any, namespace: str, job_id: str, wanted: Any) -> Any:
    known = tx.store.rollouts.share_row(namespace, job_id)
    if known is not None and known.rollout_id == wanted.rollout_id:
        return known
    return _PUT_SHARE(tx, namespace, job_id, wanted)


_GO_ON: Final = RolloutCore._go_on


def _said_before_written(self: RolloutCore, draft: Any, now_ns: int) -> Any:
    effects = _GO_ON(self, draft, now_ns)
    if self._storing is not None:
        written, self.rollout = self.rollout, self._storing
        effects += self._sends(now_ns)
        self.rollout = written
    return effects


_BEGIN: Final = MultiregionJobs.begin


async def _begun_without_key(self: MultiregionJobs, request: Any, context: CallContext) -> Any:
    context.meta = structs.replace(context.meta, request_id=None)
    return await _BEGIN(self, request, context)


_NOTE: Final = HeartbeatsCore._note_node


def _no_time_for_nodes(self: HeartbeatsCore, node_id: str, row: Any, now_ns: int) -> None:
    is_known = node_id in self._due
    _NOTE(self, node_id, row, now_ns)
    if not is_known and node_id in self._due:
        self._due[node_id] = now_ns
        heappush(self._heap, (now_ns, node_id))


def _nothing(*_: Any) -> None:
    return None


MUTANTS: Final = (
    _one("a new leader forgets rollouts", RolloutsService, "_look", _only_what_is_new, ("R-65", "R-67")),
    _one(
        "every region has its turn at once", rollout_rules, "is_in_turn", lambda _: False, ("R-65 regions",), quick=True
    ),
    _one("who failed takes nobody along", rollout_rules, "_take_along", lambda one, _: one, ("R-65 on_failure",)),
    _one("what was prepared begins at once", Deeds, "_prepared", _begins_at_once, ("R-65 nothing before",), quick=True),
    _one("a part fails in words only", Deeds, "_failed", _fails_in_words_only, ("R-65",)),
    _one("the first share stays", rollout_steps, "put_share", _first_share_stays, ("R-65 decided once",), quick=True),
    _one("steps are said before they are written", RolloutCore, "_go_on", _said_before_written, ("R-65 decided",)),
    RolloutMutant(
        "shares do not follow their deployments",
        (Patch(deployments, "follow_deployment", _nothing), Patch(deployment_updates, "follow_deployment", _nothing)),
        ("R-65",),
    ),
    RolloutMutant(
        "a late plan takes the turn back",
        (
            Patch(deployments, "has_overtaken", lambda *_: False),
            Patch(deployment_updates, "has_overtaken", lambda *_: False),
        ),
        ("R-65 rollouts end",),
    ),
    _one("rollouts are begun without a key", MultiregionJobs, "begin", _begun_without_key, ("R-67 once",)),
    _one("a new leader gives nodes no time", HeartbeatsCore, "_note_node", _no_time_for_nodes, ("R-62",), quick=True),
)

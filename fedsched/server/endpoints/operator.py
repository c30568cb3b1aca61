"""The region's settings for scheduling, and cleaning up on demand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import structs

from fedsched.codec import from_builtins, to_bytes
from fedsched.model.errors import BadRequest
from fedsched.model.scheduler_config import SchedulerConfiguration
from fedsched.rpc.method import Empty, Method
from fedsched.rpc.methods import operator as methods
from fedsched.rpc.server_side import CallContext, Handler
from fedsched.server.desk import Desk
from fedsched.server.duties import Duties
from fedsched.server.waits import Look, Looked, look_at_row
from fedsched.state.store import State
from fedsched.state.tables.meta import SCHEDULER_CONFIG, SchedulerConfigSet


def scheduler_config(state: State) -> SchedulerConfiguration:
    """How the region schedules; the defaults while nobody has said."""
    config = state.meta.config(SCHEDULER_CONFIG)
    if config is None:
        return SchedulerConfiguration()
    row = state.meta.rows.get(SCHEDULER_CONFIG)
    assert row is not None
    found = from_builtins(config, SchedulerConfiguration)
    return structs.replace(found, create_index=row.create_index, modify_index=row.modify_index)


class OperatorEndpoint:
    """Answers `Operator.Scheduler*` and `System.*`."""

    def __init__(self, desk: Desk, duties: Duties) -> None:
        self._desk = desk
        self._duties = duties

    def handlers(self) -> Mapping[Method[Any, Any], Handler]:
        return {
            methods.SCHEDULER_GET_CONFIG: self.get_config,
            methods.SCHEDULER_SET_CONFIG: self.set_config,
            methods.SYSTEM_GC: self.collect,
            methods.SYSTEM_RECONCILE: self.reconcile,
        }

    def looks(self) -> Mapping[Method[Any, Any], Look]:
        return {methods.SCHEDULER_GET_CONFIG: self._look_at_config}

    async def get_config(self, request: Empty, context: CallContext) -> methods.SchedulerConfigReply:
        return methods.SchedulerConfigReply(scheduler_config=scheduler_config(self._desk.machine.store))

    async def set_config(
        self, request: methods.SchedulerConfigSetRequest, context: CallContext
    ) -> methods.SchedulerConfigSetReply:
        config = request.scheduler_config
        if config.node_limit_for_feasibility_checks < 0:
            raise BadRequest(
                f"NodeLimitForFeasibilityChecks is {config.node_limit_for_feasibility_checks}", hint="0 or more"
            )
        command = SchedulerConfigSet(
            config=to_bytes(structs.replace(config, create_index=0, modify_index=0)),
            check_and_set=request.check_and_set,
            check_index=request.check_index,
        )
        result = await self._desk.proposals.propose(command, request=context.meta.request_id)
        context.reply_meta = structs.replace(context.reply_meta, index=result.index)
        return methods.SchedulerConfigSetReply(updated=True, index=result.index)

    async def collect(self, request: Empty, context: CallContext) -> methods.SystemReply:
        await self._duties.collect()
        return methods.SystemReply(index=self._desk.machine.store.index)

    async def reconcile(self, request: Empty, context: CallContext) -> methods.SystemReply:
        """Summaries are counted with every change and cannot drift; asking is answered, as scripts expect."""
        return methods.SystemReply(index=self._desk.machine.store.index)

    def _look_at_config(self, request: Empty, context: CallContext) -> Looked:
        return look_at_row(self._desk.machine.store, "meta", SCHEDULER_CONFIG)

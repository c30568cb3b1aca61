"""Variables: written through the leader, read from any server; tasks see what lies under their own job's path."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec import structs

from fedsched.model.alloc import Allocation
from fedsched.model.errors import BadRequest, NotFound, TooLarge
from fedsched.model.ids import is_uuid
from fedsched.model.variable import Variable, VariableMetadata
from fedsched.rpc.method import Method
from fedsched.rpc.methods import variable as methods
from fedsched.rpc.methods.paging import ListRequest
from fedsched.rpc.server_side import CallContext, Handler
from fedsched.server.alloc_stubs import whole_allocation
from fedsched.server.desk import Desk
from fedsched.server.identity import NotAllowed
from fedsched.server.node_proof import proven_node
from fedsched.server.paging import across_namespaces, by_id, page_of
from fedsched.server.sealing import open_sealed, seal
from fedsched.server.waits import Look, Looked, look_at_row
from fedsched.state.fields import Command
from fedsched.state.result import Result
from fedsched.state.store import State
from fedsched.state.tables.variables import VARIABLES, VariableDelete, VariablePut, VariableRow
from fedsched.state.waits import rows_under, whole_table

ANY_NAMESPACE: Final = "*"
ITEMS_BYTES_MAX: Final = 64 * 1024
"""Names and values of one variable together."""
PATH: Final = re.compile(r"[A-Za-z0-9_~-]+(/[A-Za-z0-9_~-]+)*")
PATH_MAX: Final = 128
RESERVED: Final = "nomad"
OPEN_IN_RESERVED: Final = ("nomad/jobs", "nomad/job-templates")
JOBS: Final = "nomad/jobs"


class NotForTask(NotAllowed):
    """A task asks for a variable that is not its own; asking again does not help."""

    code = "not_for_task"


class VariableEndpoint:
    """Answers `Var.*`."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def handlers(self) -> Mapping[Method[Any, Any], Handler]:
        return {
            methods.VAR_PUT: self.put,
            methods.VAR_GET: self.get,
            methods.VAR_LIST: self.list,
            methods.VAR_DELETE: self.delete,
            methods.VAR_OF_TASK: self.of_task,
        }

    def looks(self) -> Mapping[Method[Any, Any], Look]:
        return {
            methods.VAR_GET: lambda request, context: look_at_row(
                self._state, VARIABLES, _namespace(context), request.path
            ),
            methods.VAR_LIST: self._look_at_list,
            methods.VAR_OF_TASK: self._look_for_task,
        }

    async def put(self, request: methods.VarPutRequest, context: CallContext) -> methods.VarReply:
        namespace = _namespace(context)
        if namespace == ANY_NAMESPACE:
            raise BadRequest("a variable is written in one namespace", hint="say which with -namespace")
        check_path(request.path)
        _check_items(request.items)
        command = VariablePut(
            namespace=namespace,
            path=request.path,
            sealed=seal(request.items, namespace=namespace, path=request.path),
            check_and_set=request.check_index is not None,
            check_index=_index(request.check_index),
        )
        await self._propose(command, context)
        row = self._state.variables.get(namespace, request.path)
        if row is None:
            raise NotFound(f"variable {request.path!r} was purged as soon as it was written")
        return methods.VarReply(variable=_opened(row))

    async def get(self, request: methods.VarRequest, context: CallContext) -> methods.VarReply:
        row = self._state.variables.get(_namespace(context), request.path)
        if row is None:
            raise NotFound(f"variable {request.path!r} not found", hint="`fedsched var list` shows them")
        return methods.VarReply(variable=_opened(row))

    async def list(self, request: ListRequest, context: CallContext) -> methods.VarListReply:
        rows = self._state.variables.rows
        namespace = _namespace(context)
        if namespace == ANY_NAMESPACE:
            page, token = page_of(
                across_namespaces(rows, request.prefix),
                structs.replace(request, prefix=""),
                id_of=lambda row: f"{row.namespace}.{row.path}",
            )
        else:
            page, token = page_of(by_id(rows, namespace), request, id_of=lambda row: row.path)
        return methods.VarListReply(variables=tuple(map(_metadata, page)), next_token=token)

    async def delete(self, request: methods.VarDeleteRequest, context: CallContext) -> methods.VarWriteReply:
        command = VariableDelete(
            namespace=_namespace(context),
            path=request.path,
            check_and_set=request.check_index is not None,
            check_index=_index(request.check_index),
        )
        result = await self._propose(command, context)
        return methods.VarWriteReply(index=result.index)

    async def of_task(self, request: methods.VarOfTaskRequest, context: CallContext) -> methods.VarOfTaskReply:
        alloc = self._own_alloc(request)
        readable = readable_paths(alloc, request.task)
        if request.is_list:
            rows = self._state.variables.under(alloc.namespace, request.path)
            return methods.VarOfTaskReply(listed=tuple(_metadata(row) for row in rows if row.path in readable))
        if request.path not in readable:
            raise NotForTask(
                f"variable {request.path!r} is not for task {request.task!r} of {alloc.job_id!r}",
                hint=f"it may read {', '.join(sorted(readable))}",
            )
        row = self._state.variables.get(alloc.namespace, request.path)
        return methods.VarOfTaskReply(variable=_opened(row) if row is not None else None)

    @property
    def _state(self) -> State:
        return self._desk.machine.store

    def _own_alloc(self, request: methods.VarOfTaskRequest) -> Allocation:
        """The allocation that the asking node runs."""
        node = proven_node(self._state, request.node_id, request.secret_id)
        if not node.secret_hash:
            raise NotAllowed(f"node {node.id!r} has no secret to prove itself with", hint="it has to register again")
        alloc = whole_allocation(self._state, request.alloc_id) if is_uuid(request.alloc_id) else None
        if alloc is None or alloc.node_id != node.id or alloc.is_client_terminal:
            raise NotAllowed(f"node {node.id!r} does not run allocation {request.alloc_id[:64]!r}")
        return alloc

    def _look_at_list(self, request: ListRequest, context: CallContext) -> Looked:
        namespace = _namespace(context)
        if namespace == ANY_NAMESPACE:
            return Looked(self._state.table_index(VARIABLES), (whole_table(VARIABLES),))
        topic = rows_under(VARIABLES, namespace, text=request.prefix)
        return Looked(self._state.table_index(VARIABLES), (topic,))

    def _look_for_task(self, request: methods.VarOfTaskRequest, context: CallContext) -> Looked:
        alloc = self._own_alloc(request)
        if request.is_list:
            topic = rows_under(VARIABLES, alloc.namespace, text=request.path)
            return Looked(self._state.table_index(VARIABLES), (topic,))
        return look_at_row(self._state, VARIABLES, alloc.namespace, request.path)

    async def _propose(self, command: Command, context: CallContext) -> Result:
        result = await self._desk.proposals.propose(command, request=context.meta.request_id)
        context.reply_meta = structs.replace(context.reply_meta, index=result.index)
        return result


def readable_paths(alloc: Allocation, task: str) -> frozenset[str]:
    """The variables a task may see without being given a right: its job's, its group's and its own.

    What a periodic or dispatched job launches reads what lies under the job that it was launched by.
    """
    jobs = {alloc.job_id}
    if alloc.job is not None and alloc.job.parent_id:
        jobs.add(alloc.job.parent_id)
    inside = ("", f"/{alloc.task_group}", f"/{alloc.task_group}/{task}")
    return frozenset({JOBS, *(f"{JOBS}/{job}{rest}" for job in jobs for rest in inside)})


def check_path(path: str) -> None:
    """Refuse what cannot be a variable's path."""
    if len(path) > PATH_MAX or PATH.fullmatch(path) is None:
        raise BadRequest(
            f"invalid path {path[: PATH_MAX + 1]!r}",
            hint=f"letters, digits, dashes, `_` and `~`, with single slashes between, at most {PATH_MAX} characters",
        )
    first = path.partition("/")[0]
    if first == RESERVED and not any(path == free or path.startswith(f"{free}/") for free in OPEN_IN_RESERVED):
        raise BadRequest(f"path {path!r} is reserved", hint=f"under {RESERVED}/ only {', '.join(OPEN_IN_RESERVED)}")


def _check_items(items: Mapping[str, str]) -> None:
    if not items:
        raise BadRequest("variable missing required Items object", hint="give it at least one item")
    if "" in items:
        raise BadRequest("an item has no name")
    size = sum(len(name.encode()) + len(value.encode()) for name, value in items.items())
    if size > ITEMS_BYTES_MAX:
        raise TooLarge(f"the variable's items take {size} bytes", hint=f"at most {ITEMS_BYTES_MAX}")


def _index(given: int | None) -> int:
    if given is not None and given < 0:
        raise BadRequest(f"check index {given} is below 0")
    return given or 0


def _namespace(context: CallContext) -> str:
    return context.meta.namespace or "default"


def _metadata(row: VariableRow) -> VariableMetadata:
    return VariableMetadata(
        namespace=row.namespace,
        path=row.path,
        create_index=row.create_index,
        create_time_ns=row.create_time_ns,
        modify_index=row.modify_index,
        modify_time_ns=row.modify_time_ns,
    )


def _opened(row: VariableRow) -> Variable:
    items = open_sealed(row.sealed, namespace=row.namespace, path=row.path)
    return Variable(**structs.asdict(_metadata(row)), items=items)

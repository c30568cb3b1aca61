"""Services: entered by clients, which prove themselves with their node's secret, and read by everybody who may."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import blake2b
from itertools import groupby
from typing import Any, Final

from msgspec import structs

from fedsched.model.errors import BadRequest, TooLarge
from fedsched.model.filter import compile_filter
from fedsched.model.ids import is_uuid
from fedsched.model.record import fields_of, to_api
from fedsched.model.service import ServiceRegistration
from fedsched.rpc.method import Method
from fedsched.rpc.methods import service as methods
from fedsched.rpc.methods.paging import ListRequest
from fedsched.rpc.server_side import CallContext, Handler
from fedsched.server.desk import Desk
from fedsched.server.node_proof import proven_node
from fedsched.server.paging import across_namespaces, by_id, page_of
from fedsched.server.waits import Look, Looked, look_at_row
from fedsched.state.fields import Command
from fedsched.state.result import Result
from fedsched.state.store import State
from fedsched.state.tables.services import (
    BODY_MAX,
    SERVICE_NAMES,
    SERVICES,
    ServiceDelete,
    ServiceNameRow,
    ServiceRow,
    ServicesDeregister,
    ServicesRegister,
    service_write,
)
from fedsched.state.waits import rows_under, whole_table

ANY_NAMESPACE: Final = "*"
NAME_MAX: Final = 255
PORT_MAX: Final = 65_535


class ServiceEndpoint:
    """Answers `Service.*`."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def handlers(self) -> Mapping[Method[Any, Any], Handler]:
        return {
            methods.SERVICE_REGISTER: self.register,
            methods.SERVICE_DEREGISTER: self.deregister,
            methods.SERVICE_OF_NODE: self.of_node,
            methods.SERVICE_LIST: self.list,
            methods.SERVICE_GET: self.get,
            methods.SERVICE_OF: self.of,
            methods.SERVICE_DELETE: self.delete,
        }

    def looks(self) -> Mapping[Method[Any, Any], Look]:
        return {
            methods.SERVICE_GET: self._look_at_one,
            methods.SERVICE_LIST: self._look_at_names,
            methods.SERVICE_OF: lambda request, context: self._table(SERVICES),
        }

    async def register(
        self, request: methods.ServiceRegisterRequest, context: CallContext
    ) -> methods.ServiceRegisterReply:
        node = proven_node(self._state, request.node_id, request.secret_id)
        _check_batch(len(request.services))
        writes = [service_write(_admitted(one, node.id)) for one in request.services]
        for write in writes:
            if len(write.body) > BODY_MAX:
                raise TooLarge(
                    f"service {write.name!r}: its registration takes {len(write.body)} bytes",
                    hint=f"at most {BODY_MAX}: use fewer or shorter tags",
                )
        result = await self._propose(ServicesRegister(services=tuple(writes)), context)
        return methods.ServiceRegisterReply(
            index=result.index, passed_over=tuple(result.value.get("passed_over") or ())
        )

    async def deregister(
        self, request: methods.ServiceDeregisterRequest, context: CallContext
    ) -> methods.ServiceWriteReply:
        node = proven_node(self._state, request.node_id, request.secret_id)
        _check_batch(len(request.ids))
        return await self._removed(ServicesDeregister(ids=request.ids, node_id=node.id), context)

    async def of_node(self, request: methods.ServiceOfNodeRequest, context: CallContext) -> methods.ServiceGetReply:
        node = proven_node(self._state, request.node_id, request.secret_id)
        return methods.ServiceGetReply(services=_registrations(self._state.services.of_node(node.id)))

    async def list(self, request: ListRequest, context: CallContext) -> methods.ServiceListReply:
        names = self._state.services.names
        namespace = context.meta.namespace or "default"
        if namespace == ANY_NAMESPACE:
            rows, token = page_of(
                across_namespaces(names, request.prefix),
                structs.replace(request, prefix=""),
                id_of=lambda row: f"{row.namespace}.{row.name}",
            )
        else:
            rows, token = page_of(by_id(names, namespace), request, id_of=lambda row: row.name)
        found = tuple(
            methods.NamespaceServices(namespace=space, services=tuple(map(self._named, inside)))
            for space, inside in groupby(rows, key=lambda row: row.namespace)
        )
        return methods.ServiceListReply(namespaces=found, next_token=token)

    async def get(self, request: methods.ServiceGetRequest, context: CallContext) -> methods.ServiceGetReply:
        namespace = context.meta.namespace or "default"
        found = _registrations(self._state.services.of_name(namespace, request.name))
        if request.filter:
            test = compile_filter(request.filter, [one.api_name for one in fields_of(ServiceRegistration)])
            found = tuple(one for one in found if test(to_api(one)))
        return methods.ServiceGetReply(services=_chosen(found, request.choose))

    async def of(self, request: methods.ServiceOfRequest, context: CallContext) -> methods.ServiceGetReply:
        services = self._state.services
        if request.alloc_id:
            return methods.ServiceGetReply(services=_registrations(services.of_alloc(request.alloc_id)))
        namespace = context.meta.namespace or "default"
        return methods.ServiceGetReply(services=_registrations(services.of_job(namespace, request.job_id)))

    async def delete(self, request: methods.ServiceDeleteRequest, context: CallContext) -> methods.ServiceWriteReply:
        namespace = context.meta.namespace or "default"
        return await self._removed(ServiceDelete(id=request.id, namespace=namespace, name=request.name), context)

    @property
    def _state(self) -> State:
        return self._desk.machine.store

    def _named(self, row: ServiceNameRow) -> methods.ServiceName:
        found = _registrations(self._state.services.of_name(row.namespace, row.name))
        return methods.ServiceName(
            service_name=row.name, tags=tuple(sorted({tag for one in found for tag in one.tags}))
        )

    def _look_at_one(self, request: methods.ServiceGetRequest, context: CallContext) -> Looked:
        return look_at_row(self._state, SERVICE_NAMES, context.meta.namespace or "default", request.name)

    def _look_at_names(self, request: ListRequest, context: CallContext) -> Looked:
        namespace = context.meta.namespace or "default"
        if namespace == ANY_NAMESPACE:
            return self._table(SERVICE_NAMES)
        topic = rows_under(SERVICE_NAMES, namespace, text=request.prefix)
        return Looked(self._state.table_index(SERVICE_NAMES), (topic,))

    def _table(self, table: str) -> Looked:
        return Looked(self._state.table_index(table), (whole_table(table),))

    async def _removed(self, command: Command, context: CallContext) -> methods.ServiceWriteReply:
        result = await self._propose(command, context)
        return methods.ServiceWriteReply(index=result.index, removed=int(result.value.get("removed") or 0))

    async def _propose(self, command: Command, context: CallContext) -> Result:
        result = await self._desk.proposals.propose(command, request=context.meta.request_id)
        context.reply_meta = structs.replace(context.reply_meta, index=result.index)
        return result


def _admitted(wanted: ServiceRegistration, node_id: str) -> ServiceRegistration:
    """Refuse what cannot be a registration of this node."""
    if wanted.node_id not in ("", node_id):
        raise BadRequest(f"registration {wanted.id!r} is for node {wanted.node_id!r}, not for {node_id!r}")
    if not wanted.id or len(wanted.id) > NAME_MAX:
        raise BadRequest(f"registration id {wanted.id[:64]!r} has {len(wanted.id)} characters", hint=f"1 to {NAME_MAX}")
    if not wanted.service_name or len(wanted.service_name) > NAME_MAX:
        raise BadRequest(f"service name {wanted.service_name[:64]!r} is empty or longer than {NAME_MAX} characters")
    if not is_uuid(wanted.alloc_id):
        raise BadRequest(f"registration {wanted.id!r} names no allocation: {wanted.alloc_id[:64]!r}")
    if not 0 <= wanted.port <= PORT_MAX:
        raise BadRequest(f"service {wanted.service_name!r}: port {wanted.port} is outside 0 to {PORT_MAX}")
    return structs.replace(wanted, node_id=node_id, namespace=wanted.namespace or "default")


def _check_batch(count: int) -> None:
    if count > methods.BATCH_MAX:
        raise TooLarge(f"{count} registrations in one call", hint=f"at most {methods.BATCH_MAX}")


def _registrations(rows: Iterable[ServiceRow]) -> tuple[ServiceRegistration, ...]:
    return tuple(row.registration() for row in rows)


def _chosen(found: tuple[ServiceRegistration, ...], choose: str) -> tuple[ServiceRegistration, ...]:
    """So many of them, picked by rendezvous: another registration more or less changes little for anybody."""
    if not choose:
        return found
    number, bar, key = choose.partition("|")
    if not bar or not number.isdecimal() or len(number) > 6 or not int(number):
        raise BadRequest(f"choose is {choose[:64]!r}", hint="a number and a key, such as `2|my-host`")

    def weight(one: ServiceRegistration) -> bytes:
        return blake2b(f"{key}\0{one.id}".encode(), digest_size=8).digest()

    return tuple(sorted(found, key=weight)[: int(number)])

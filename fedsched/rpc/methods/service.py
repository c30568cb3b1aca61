"""Services: what clients enter and take out for their allocations, and who offers what."""

from __future__ import annotations

from typing import Annotated

from fedsched.model.declare import Record
from fedsched.model.service import ServiceRegistration
from fedsched.rpc.methods.forms import reads, writes
from fedsched.rpc.methods.paging import ListReply, ListRequest

BATCH_MAX = 1000
"""Registrations in one call; a client with more sends several."""


class ServiceRegisterRequest(Record):
    """What a client's allocations offer, as far as servers have not heard of it."""

    node_id: str
    secret_id: str = ""
    services: tuple[ServiceRegistration, ...] = ()


class ServiceRegisterReply(Record):
    index: int = 0
    passed_over: Annotated[tuple[str, ...], "Ids of those whose allocation does not run on that node (any more)."] = ()


class ServiceDeregisterRequest(Record):
    node_id: str
    secret_id: str = ""
    ids: tuple[str, ...] = ()


class ServiceOfNodeRequest(Record):
    node_id: str
    secret_id: str = ""


class ServiceWriteReply(Record):
    index: int = 0
    removed: int = 0


class ServiceName(Record):
    """A service as lists show it."""

    service_name: str
    tags: Annotated[tuple[str, ...], "All tags of its registrations."] = ()


class NamespaceServices(Record):
    """The services of one namespace."""

    namespace: str
    services: tuple[ServiceName, ...] = ()


class ServiceListReply(ListReply):
    namespaces: tuple[NamespaceServices, ...] = ()


class ServiceGetRequest(Record):
    name: str
    choose: Annotated[str, "`<n>|<key>`: so many of them, the same for the same key as long as they last."] = ""
    filter: Annotated[str, "Only those that this expression is true of."] = ""


class ServiceGetReply(Record):
    services: tuple[ServiceRegistration, ...] = ()


class ServiceOfRequest(Record):
    """Whose registrations are asked for: one of the two."""

    alloc_id: str = ""
    job_id: str = ""


class ServiceDeleteRequest(Record):
    name: str
    id: str


SERVICE_REGISTER = writes(
    "Service.Register", ServiceRegisterRequest, ServiceRegisterReply, "", "A client enters what its allocations offer."
)
SERVICE_DEREGISTER = writes(
    "Service.Deregister",
    ServiceDeregisterRequest,
    ServiceWriteReply,
    "",
    "A client takes registrations of its own out.",
)
SERVICE_OF_NODE = reads(
    "Service.OfNode", ServiceOfNodeRequest, ServiceGetReply, "", "A client asks what is registered for its node."
)
SERVICE_LIST = reads(
    "Service.List", ListRequest, ServiceListReply, "read-job", "The names of services, with their tags."
)
SERVICE_GET = reads("Service.Get", ServiceGetRequest, ServiceGetReply, "read-job", "Who offers one service, and where.")
SERVICE_OF = reads(
    "Service.Of", ServiceOfRequest, ServiceGetReply, "read-job", "What one allocation, or one job, offers."
)
SERVICE_DELETE = writes(
    "Service.Delete", ServiceDeleteRequest, ServiceWriteReply, "submit-job", "Take one registration out by hand."
)

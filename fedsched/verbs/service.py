"""`service ...`: who offers what, and where."""

from __future__ import annotations

from collections.abc import Iterator

from fedsched.model.errors import NotFound
from fedsched.model.record import to_api
from fedsched.rpc.methods.paging import ListRequest
from fedsched.rpc.methods.service import (
    SERVICE_DELETE,
    SERVICE_GET,
    SERVICE_LIST,
    NamespaceServices,
    ServiceDeleteRequest,
    ServiceGetRequest,
)
from fedsched.verbs.flags import Argument, Flag, Given
from fedsched.verbs.lookup import PAGE
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.verb import JSON, OK, TEMPLATE, VERBOSE, Regions, Verbs
from fedsched.verbs.view import columns, pairs, short

VERBS = Verbs()
NAME = Argument("name", "name of the service")
FILTER = Flag("filter", "only those that this expression is true of", value="expression")


@VERBS.verb("service list", "list services", flags=(JSON, TEMPLATE), regions=Regions.EACH)
def list_(terminal: Terminal, given: Given) -> int:
    found = list(_all(terminal))
    if terminal.formatted(given, lambda: [to_api(one) for one in found]):
        return OK
    rows = [(inside.namespace, one.service_name, _tags(one.tags)) for inside in found for one in inside.services]
    if not rows:
        terminal.say("No services found")
    elif terminal.target.namespace == "*":
        terminal.write(
            columns(("Service Name", "Namespace", "Tags"), [(name, space, tags) for space, name, tags in rows])
        )
    else:
        terminal.write(columns(("Service Name", "Tags"), [row[1:] for row in rows]))
    return OK


@VERBS.verb(
    "service info",
    "show where a service is offered",
    flags=(FILTER, VERBOSE, JSON, TEMPLATE),
    arguments=(NAME,),
    regions=Regions.EACH,
)
def info(terminal: Terminal, given: Given) -> int:
    request = ServiceGetRequest(name=given["name"], filter=given["filter"] or "")
    found = terminal.client.call(SERVICE_GET, request).services
    if terminal.formatted(given, lambda: [to_api(one) for one in found]):
        return OK
    if not found:
        raise NotFound(
            f'No service registrations found for "{given["name"]}"', hint="`fedsched service list` shows all"
        )
    if given["verbose"]:
        for at, one in enumerate(found):
            terminal.write("\n" if at else "")
            fields = [("ID", one.id), ("Service Name", one.service_name), ("Namespace", one.namespace)]
            fields += [("Job ID", one.job_id), ("Alloc ID", one.alloc_id), ("Node ID", one.node_id)]
            fields += [("Datacenter", one.datacenter), ("Address", _address(one.address, one.port))]
            terminal.write(pairs([*fields, ("Tags", _tags(one.tags))]))
        return OK
    head = ("Job ID", "Address", "Tags", "Node ID", "Alloc ID")
    rows = [
        (one.job_id, _address(one.address, one.port), _tags(one.tags), short(one.node_id), short(one.alloc_id))
        for one in found
    ]
    terminal.write(columns(head, rows))
    return OK


@VERBS.verb(
    "service delete",
    "take one registration of a service out",
    doc="Take one registration of a service out. A client that still offers it enters it again within a minute or so.",
    flags=(JSON,),
    arguments=(NAME, Argument("id", "id of the registration, as `service info -verbose` shows it")),
)
def delete(terminal: Terminal, given: Given) -> int:
    reply = terminal.client.call(SERVICE_DELETE, ServiceDeleteRequest(name=given["name"], id=given["id"]))
    if not terminal.formatted(given, lambda: to_api(reply)):
        terminal.say("Successfully deleted service registration")
    return OK


def _all(terminal: Terminal) -> Iterator[NamespaceServices]:
    token = ""
    while True:
        reply = terminal.client.call(SERVICE_LIST, ListRequest(per_page=PAGE, next_token=token))
        yield from reply.namespaces
        token = reply.next_token
        if not token:
            return


def _tags(tags: tuple[str, ...]) -> str:
    return f"[{','.join(tags)}]"


def _address(address: str, port: int) -> str:
    host = f"[{address}]" if ":" in address else address
    return f"{host}:{port}" if port else host

"""`namespace ...`: sets of jobs."""

from __future__ import annotations

from collections.abc import Sequence

from fedsched.model.namespace import Namespace
from fedsched.model.record import to_api
from fedsched.rpc.methods.paging import ListRequest
from fedsched.rpc.methods.places import (
    NAMESPACE_DELETE,
    NAMESPACE_GET,
    NAMESPACE_LIST,
    NAMESPACE_UPSERT,
    NameRequest,
    NamespaceUpsertRequest,
)
from fedsched.verbs.flags import Argument, Flag, Given
from fedsched.verbs.lookup import PAGE
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.verb import JSON, OK, TEMPLATE, Verbs
from fedsched.verbs.view import as_json, columns, pairs

VERBS = Verbs()
NAME = Argument("name", "name of the namespace")


@VERBS.verb("namespace list", "list namespaces", flags=(JSON, TEMPLATE))
def list_(terminal: Terminal, given: Given) -> int:
    found: list[Namespace] = []
    token = ""
    while True:
        reply = terminal.client.call(NAMESPACE_LIST, ListRequest(per_page=PAGE, next_token=token))
        found += reply.namespaces
        token = reply.next_token
        if not token:
            break
    if not terminal.formatted(given, lambda: [to_api(one) for one in found]):
        terminal.write(_table(found))
    return OK


@VERBS.verb(
    "namespace apply",
    "make or change a namespace",
    flags=(Flag("description", "what it is for", value="text"), JSON),
    arguments=(NAME,),
)
def apply(terminal: Terminal, given: Given) -> int:
    wanted = Namespace(name=given["name"], description=given["description"] or "")
    reply = terminal.client.call(NAMESPACE_UPSERT, NamespaceUpsertRequest(namespace=wanted))
    if not terminal.formatted(given, lambda: to_api(reply)):
        terminal.say(f'Successfully applied namespace "{wanted.name}"!')
    return OK


@VERBS.verb("namespace status", "show one namespace", flags=(JSON, TEMPLATE), arguments=(NAME,))
def status(terminal: Terminal, given: Given) -> int:
    found = terminal.client.call(NAMESPACE_GET, NameRequest(name=given["name"])).namespace
    if terminal.formatted(given, lambda: to_api(found)):
        return OK
    terminal.write(pairs([("Name", found.name), ("Description", found.description), ("Quota", found.quota)]))
    if found.meta:
        terminal.heading("Metadata")
        terminal.write(pairs(sorted(found.meta.items())))
    return OK


@VERBS.verb("namespace inspect", "print a namespace as the API gives it", flags=(JSON, TEMPLATE), arguments=(NAME,))
def inspect(terminal: Terminal, given: Given) -> int:
    found = terminal.client.call(NAMESPACE_GET, NameRequest(name=given["name"])).namespace
    if not terminal.formatted(given, lambda: to_api(found)):
        terminal.write(as_json(to_api(found)))
    return OK


@VERBS.verb("namespace delete", "forget a namespace that has no jobs", flags=(JSON,), arguments=(NAME,))
def delete(terminal: Terminal, given: Given) -> int:
    reply = terminal.client.call(NAMESPACE_DELETE, NameRequest(name=given["name"]))
    if not terminal.formatted(given, lambda: to_api(reply)):
        terminal.say(f'Successfully deleted namespace "{given["name"]}"!')
    return OK


def _table(found: Sequence[Namespace]) -> str:
    return columns(("Name", "Description"), [(one.name, one.description) for one in found])

"""`namespace ...`: sets of jobs."""

from __future__ import annotations

from fedsched.model.namespace import Namespace
from fedsched.model.record import to_api
from fedsched.rpc.methods.places import (
    NAMESPACE_DELETE,
    NAMESPACE_GET,
    NAMESPACE_LIST,
    NAMESPACE_UPSERT,
    NameRequest,
    NamespaceUpsertRequest,
)
from fedsched.verbs.flags import Argument, Flag, Given
from fedsched.verbs.named import apply_named, delete_named, list_named
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.verb import JSON, OK, TEMPLATE, Regions, Verbs
from fedsched.verbs.view import pairs

VERBS = Verbs()
NAME = Argument("name", "name of the namespace")


@VERBS.verb("namespace list", "list namespaces", flags=(JSON, TEMPLATE), regions=Regions.EACH)
def list_(terminal: Terminal, given: Given) -> int:
    return list_named(terminal, given, NAMESPACE_LIST, lambda reply: reply.namespaces)


@VERBS.verb(
    "namespace apply",
    "make or change a namespace",
    flags=(Flag("description", "what it is for", value="text"), JSON),
    arguments=(NAME,),
)
def apply(terminal: Terminal, given: Given) -> int:
    wanted = Namespace(name=given["name"], description=given["description"] or "")
    request = NamespaceUpsertRequest(namespace=wanted)
    return apply_named(terminal, given, NAMESPACE_UPSERT, request, f'namespace "{wanted.name}"')


@VERBS.verb("namespace status", "show one namespace", flags=(JSON, TEMPLATE), arguments=(NAME,), regions=Regions.EACH)
def status(terminal: Terminal, given: Given) -> int:
    found = terminal.client.call(NAMESPACE_GET, NameRequest(name=given["name"])).namespace
    if terminal.formatted(given, lambda: to_api(found)):
        return OK
    terminal.write(pairs([("Name", found.name), ("Description", found.description), ("Quota", found.quota)]))
    if found.meta:
        terminal.heading("Metadata")
        terminal.write(pairs(sorted(found.meta.items())))
    return OK


@VERBS.verb(
    "namespace inspect",
    "print a namespace as the API gives it",
    flags=(JSON, TEMPLATE),
    arguments=(NAME,),
    regions=Regions.EACH,
)
def inspect(terminal: Terminal, given: Given) -> int:
    found = terminal.client.call(NAMESPACE_GET, NameRequest(name=given["name"])).namespace
    if not terminal.formatted(given, lambda: to_api(found)):
        terminal.show_json(to_api(found))
    return OK


@VERBS.verb("namespace delete", "forget a namespace that has no jobs", flags=(JSON,), arguments=(NAME,))
def delete(terminal: Terminal, given: Given) -> int:
    return delete_named(terminal, given, NAMESPACE_DELETE, given["name"], f'namespace "{given["name"]}"')

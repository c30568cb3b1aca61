"""`var ...`: small maps of settings and secrets under a path."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from fedsched.model.errors import BadRequest, Conflict, NotFound
from fedsched.model.record import to_api
from fedsched.model.variable import Variable, VariableMetadata
from fedsched.rpc.methods.paging import ListRequest
from fedsched.rpc.methods.variable import (
    VAR_DELETE,
    VAR_GET,
    VAR_LIST,
    VAR_PUT,
    VarDeleteRequest,
    VarPutRequest,
    VarRequest,
)
from fedsched.verbs.flags import Argument, BadUsage, Flag, Given
from fedsched.verbs.lookup import PAGE
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.verb import JSON, OK, TEMPLATE, Regions, Verbs
from fedsched.verbs.view import columns, moment, pairs

VERBS = Verbs()
PATH = Argument("path", "path of the variable")
CHECK = Flag("check-index", "only if it was last changed at this index", int, value="index")


@VERBS.verb(
    "var put",
    "store a variable",
    doc=(
        "Store a variable. Items are written `name=value`, with `name=@file` for the content of a file. Instead, or "
        "before them, `@file` or `-` (standard input) gives a whole variable as JSON.\n\n"
        "A variable that is there already is replaced only with -force, or with -check-index and the index that it "
        "was last changed at, so that nobody's change is lost by accident."
    ),
    flags=(Flag("force", "replace it whatever is there now", bool), CHECK, JSON, TEMPLATE),
    arguments=(PATH, Argument("items", "name=value, or @file, or -", many=True)),
)
def put(terminal: Terminal, given: Given) -> int:
    if given["force"] and given["check-index"] is not None:
        raise BadUsage("-force and -check-index exclude each other")
    items, index = _items(terminal, given["items"])
    check = None if given["force"] else given["check-index"] if given["check-index"] is not None else index
    try:
        reply = terminal.client.call(VAR_PUT, VarPutRequest(path=given["path"], items=items, check_index=check))
    except Conflict as conflict:
        hint = f"look at it with `fedsched var get {given['path']}`, then repeat with its ModifyIndex, or with -force"
        raise Conflict(conflict.message, hint=hint) from None
    if not terminal.formatted(given, lambda: to_api(reply.variable)):
        _show(terminal, reply.variable)
    return OK


@VERBS.verb(
    "var get",
    "show a variable with its items",
    flags=(Flag("item", "print the value of this item alone", value="name"), JSON, TEMPLATE),
    arguments=(PATH,),
    regions=Regions.EACH,
)
def get(terminal: Terminal, given: Given) -> int:
    found = terminal.client.call(VAR_GET, VarRequest(path=given["path"])).variable
    if given["item"] is not None:
        if given["item"] not in found.items:
            known = ", ".join(sorted(found.items))
            raise NotFound(f"variable {found.path!r} has no item {given['item']!r}", hint=f"it has {known}")
        terminal.say(found.items[given["item"]])
        return OK
    if not terminal.formatted(given, lambda: to_api(found)):
        _show(terminal, found)
    return OK


@VERBS.verb(
    "var list",
    "list variables",
    flags=(JSON, TEMPLATE),
    arguments=(Argument("prefix", "only those whose path begins like this", optional=True),),
    regions=Regions.EACH,
)
def list_(terminal: Terminal, given: Given) -> int:
    found: list[VariableMetadata] = []
    token = ""
    while True:
        request = ListRequest(prefix=given["prefix"] or "", per_page=PAGE, next_token=token)
        reply = terminal.client.call(VAR_LIST, request)
        found += reply.variables
        token = reply.next_token
        if not token:
            break
    if terminal.formatted(given, lambda: [to_api(one) for one in found]):
        return OK
    if not found:
        terminal.say("No variables found")
    else:
        rows = [(one.namespace, one.path, moment(one.modify_time_ns)) for one in found]
        terminal.write(columns(("Namespace", "Path", "Last Updated"), rows))
    return OK


@VERBS.verb("var purge", "forget a variable", flags=(CHECK, JSON), arguments=(PATH,))
def purge(terminal: Terminal, given: Given) -> int:
    reply = terminal.client.call(VAR_DELETE, VarDeleteRequest(path=given["path"], check_index=given["check-index"]))
    if not terminal.formatted(given, lambda: to_api(reply)):
        terminal.say(f'Successfully purged variable "{given["path"]}"!')
    return OK


def _items(terminal: Terminal, words: list[str]) -> tuple[dict[str, str], int]:
    """The items that were typed, and the index that a whole variable says it was read at."""
    items: dict[str, str] = {}
    index = 0
    for at, word in enumerate(words):
        name, equals, value = word.partition("=")
        if at == 0 and (word == "-" or (word.startswith("@") and not equals)):
            said, index = _whole(terminal.stdin.read() if word == "-" else _file(word[1:]))
            items |= said
        elif not equals or not name:
            raise BadUsage(f"{word!r} is not name=value", hint="such as password=secret, or key=@file")
        else:
            items[name] = _file(value[1:]) if value.startswith("@") else value
    return items, index


def _whole(text: str) -> tuple[dict[str, str], int]:
    try:
        known = json.loads(text)
    except ValueError as error:
        raise BadRequest(f"not a variable in JSON: {error}", hint='such as {"Items": {"name": "value"}}') from None
    items = known.get("Items") if isinstance(known, Mapping) else None
    if not isinstance(items, Mapping) or not all(isinstance(value, str) for value in items.values()):
        raise BadRequest("the variable has no Items of text", hint='such as {"Items": {"name": "value"}}')
    index: Any = known.get("ModifyIndex") or 0
    return dict(items), index if isinstance(index, int) else 0


def _file(name: str) -> str:
    try:
        with open(name, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as error:
        raise BadRequest(f"cannot read {name!r}: {error}") from None


def _show(terminal: Terminal, found: Variable) -> None:
    terminal.write(
        pairs(
            [
                ("Namespace", found.namespace),
                ("Path", found.path),
                ("Create Time", moment(found.create_time_ns)),
                ("Check Index", found.modify_index),
            ]
        )
    )
    terminal.heading("Items")
    terminal.write(pairs(sorted(found.items.items())))

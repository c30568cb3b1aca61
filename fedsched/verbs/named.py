"""What verbs for stored things with a name have in common: namespaces, node pools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from fedsched.model.record import to_api
from fedsched.rpc.method import Method
from fedsched.rpc.methods.paging import ListReply, ListRequest
from fedsched.rpc.methods.places import NameRequest
from fedsched.verbs.flags import Given
from fedsched.verbs.lookup import PAGE
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.verb import OK
from fedsched.verbs.view import columns


def list_named(
    terminal: Terminal, given: Given, method: Method[ListRequest, Any], rows: Callable[[Any], Sequence[Any]]
) -> int:
    """Print all of a kind, page by page; `rows` takes them out of a reply."""
    found: list[Any] = []
    token = ""
    while True:
        reply: ListReply = terminal.client.call(method, ListRequest(per_page=PAGE, next_token=token))
        found += rows(reply)
        token = reply.next_token
        if not token:
            break
    if not terminal.formatted(given, lambda: [to_api(one) for one in found]):
        terminal.write(columns(("Name", "Description"), [(one.name, one.description) for one in found]))
    return OK


def apply_named(terminal: Terminal, given: Given, method: Method[Any, Any], request: Any, what: str) -> int:
    """Make or change one; `what` is its kind and name, for people."""
    reply = terminal.client.call(method, request)
    if not terminal.formatted(given, lambda: to_api(reply)):
        terminal.say(f"Successfully applied {what}!")
    return OK


def delete_named(terminal: Terminal, given: Given, method: Method[NameRequest, Any], name: str, what: str) -> int:
    """Forget one."""
    reply = terminal.client.call(method, NameRequest(name=name))
    if not terminal.formatted(given, lambda: to_api(reply)):
        terminal.say(f"Successfully deleted {what}!")
    return OK

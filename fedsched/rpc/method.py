"""What a method is. Declared once; dispatch, SDK, HTTP routes, completion, metrics and docs read the declaration."""

from __future__ import annotations

import enum
import importlib
from typing import Any, Final, Generic, TypeVar

import msgspec

from fedsched.model.declare import Record
from fedsched.model.errors import NotFound
from fedsched.wire.call_state import Flow

Q = TypeVar("Q", bound=Record)
R = TypeVar("R", bound=Record)

_METHODS: Final[dict[str, Method[Any, Any]]] = {}


class RunsAt(enum.Enum):
    """Where a method must run; dispatch brings it there."""

    LEADER = "leader"
    ANY_SERVER = "any server"
    """Any server of the region; reads wait there until what they see is new enough."""
    THIS_AGENT = "this agent"
    NODE = "the node"
    EVERY_REGION = "every region"


class Empty(Record):
    """Nothing to say."""


class Method(msgspec.Struct, Generic[Q, R], frozen=True, eq=False):
    """One thing that can be asked for over the wire."""

    name: str
    """Noun and verb, `Job.Register`; never changes its meaning once released."""
    request: type[Q]
    reply: type[R]
    runs_at: RunsAt
    needs: str
    """The capability a token must have: a namespace capability (`read-job`), an area and level (`operator:write`),
    `server` for what only servers of one region ask of each other, `pool` for those of all regions, or nothing."""
    doc: str
    writes: bool = False
    """Whether it changes replicated state: such calls carry a request id, so that a retry is not done twice."""
    needs_quorum: bool = True
    """False for what a server knows by itself: such questions are answered at once, also without a leader."""
    flow: Flow = Flow.NONE
    item: type | None = None
    """What a stream's items are: `bytes` as they come, or a record type."""

    @property
    def noun(self) -> str:
        return self.name.partition(".")[0]


def declare(method: Method[Q, R]) -> Method[Q, R]:
    """Enter a method into the table."""
    noun, dot, verb = method.name.partition(".")
    if not (noun.isidentifier() and dot and verb.isidentifier()):
        raise ValueError(f"method name {method.name!r} is not Noun.Verb")
    if method.name in _METHODS:
        raise ValueError(f"method {method.name} is declared twice")
    if (method.flow is Flow.NONE) != (method.item is None):
        raise ValueError(f"method {method.name}: a stream needs an item type, anything else has none")
    if not method.doc:
        raise ValueError(f"method {method.name} has no doc line")
    _METHODS[method.name] = method
    return method


def all_methods() -> tuple[Method[Any, Any], ...]:
    """Every method, by name."""
    importlib.import_module("fedsched.rpc.methods.all")
    return tuple(method for _, method in sorted(_METHODS.items()))


def method_named(name: str) -> Method[Any, Any]:
    """The method of this name; `NotFound` names the nearest ones."""
    method = _METHODS.get(name)
    if method is None:
        all_methods()
        method = _METHODS.get(name)
    if method is None:
        noun = name.partition(".")[0]
        same_noun = ", ".join(known for known in sorted(_METHODS) if known.startswith(f"{noun}."))
        raise UnknownMethod(f"no method {name[:64]!r}", hint=f"there are {same_noun}" if same_noun else "")
    return method


class UnknownMethod(NotFound):
    """The peer asks for something this version does not have."""

    code = "unknown_method"

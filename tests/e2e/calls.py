"""Calls to one agent the way a program makes them, one connection each and every attempt by itself."""

from __future__ import annotations

import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from fedsched.model.declare import Record
from fedsched.model.errors import Conflict, FedschedError, NotFound
from fedsched.model.job import Job
from fedsched.rpc.context import CallMeta, ReplyMeta, RequestID
from fedsched.rpc.method import Empty, Method
from fedsched.rpc.methods.job import JOB_GET, JOB_REGISTER, JobRegisterRequest, JobRequest
from fedsched.rpc.methods.raft import RAFT_LIST_PEERS, RAFT_STATUS
from fedsched.sdk.client import NO_META, Client
from fedsched.sdk.target import Target
from fedsched.wire import blocking_link
from fedsched.wire.address import parse_address
from fedsched.wire.tls import TlsOptions
from tests.builders import a_job
from tests.e2e.region import Server
from tests.e2e.view import View

CALL_S = 30.0
LOOK_S = 1.0

Q = TypeVar("Q", bound=Record)
R = TypeVar("R", bound=Record)


@dataclass(frozen=True)
class Seen:
    """What a read returned. `as_of` is the index of the state that answered."""

    value: str | None
    index: int
    as_of: int = 0


@dataclass(frozen=True)
class Peer:
    """A member of the region's server set."""

    name: str
    id: str
    is_voter: bool


CERTS = Path(__file__).parent / "certs"
OUR_TLS = TlsOptions(
    ca_cert=str(CERTS / "ca.pem"), client_cert=str(CERTS / "client.pem"), client_key=str(CERTS / "client.key")
)


def connect(address: str, timeout_s: float, tls: TlsOptions = OUR_TLS) -> Client:
    """A client to `ask`: its first question dials; the errors are those of the wire (`Unavailable`, ...)."""
    target = Target(parse_address(address))
    return Client(target, lambda: blocking_link.connect(target.address, timeout_s=timeout_s, tls=tls))


def job_with(key: str, value: str) -> Job:
    """A job that differs from any other registered under the key by this value alone."""
    return a_job(key, meta={"value": value}, region="")


def register(
    caller: Client, key: str, value: str, *, expected: int | None, request: RequestID | None, timeout_s: float
) -> int | None:
    """Write the key, if `expected` is given only at that modify index; None when it is not there (any more)."""
    body = JobRegisterRequest(
        job=job_with(key, value), enforce_index=expected is not None, job_modify_index=expected or 0
    )
    try:
        reply, _ = caller.ask(JOB_REGISTER, body, CallMeta(request_id=request), timeout_s)
    except Conflict:
        if expected is None:
            raise
        return None
    return reply.job_modify_index


def read(caller: Client, key: str, *, stale: bool, timeout_s: float) -> Seen:
    try:
        reply, meta = caller.ask(JOB_GET, JobRequest(job_id=key), CallMeta(stale=stale), timeout_s)
    except NotFound:
        return Seen(None, 0)
    return Seen(reply.job.meta["value"], reply.job.job_modify_index, meta.applied)


class Caller:
    """A patient caller for tests: what does not work within half a minute is a failure."""

    def __init__(self, server: Server) -> None:
        self._caller = connect(server.address, CALL_S)

    def call(self, method: Method[Q, R], request: Q, meta: CallMeta = NO_META) -> tuple[R, ReplyMeta]:
        return self._caller.ask(method, request, meta, CALL_S)

    def register(self, key: str, value: str) -> int:
        index = register(self._caller, key, value, expected=None, request=None, timeout_s=CALL_S)
        assert index is not None
        return index

    def get(self, key: str, *, stale: bool = False) -> Seen:
        return read(self._caller, key, stale=stale, timeout_s=CALL_S)

    def peers(self) -> list[Peer]:
        reply, _ = self.call(RAFT_LIST_PEERS, Empty())
        return [Peer(server.node, server.id, server.voter) for server in reply.servers]

    def close(self) -> None:
        self._caller.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()


def register_all(server: Server, keys: Iterable[str], *, callers: int = 16) -> int:
    """Write every key once, by several connections at a time; the highest index made."""
    todo = list(enumerate(keys))
    lock = threading.Lock()
    indexes: list[int] = []
    failures: list[BaseException] = []

    def work() -> None:
        try:
            with Caller(server) as caller:
                while True:
                    with lock:
                        if not todo:
                            return
                        number, key = todo.pop()
                    index = caller.register(key, f"value-{number}")
                    with lock:
                        indexes.append(index)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(callers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    return max(indexes)


class Looker:
    """Asks servers how they are, over connections that are kept; learns which id belongs to which name."""

    def __init__(self) -> None:
        self._callers: dict[str, Client] = {}
        self._names: dict[str, str] = {}
        self._lock = threading.Lock()

    def __call__(self, server: Server) -> View | None:
        with self._lock:
            was_kept = server.address in self._callers
            try:
                return self._look(server)
            except FedschedError:
                self._drop(server.address)
            try:
                return self._look(server) if was_kept else None  # a kept link may have been idle for too long
            except FedschedError:
                self._drop(server.address)
                return None

    def _look(self, server: Server) -> View:
        caller = self._callers.get(server.address)
        if caller is None:
            caller = self._callers[server.address] = connect(server.address, LOOK_S)
        status, _ = caller.ask(RAFT_STATUS, Empty(), timeout_s=LOOK_S)
        self._names[status.server_id] = server.name
        return View(
            name=server.name,
            role=status.role,
            leader=self._names.get(status.leader, status.leader),
            term=status.term,
            applied=status.applied,
            last=status.last,
            state_index=status.state_index,
            digest=status.state_digest,
            is_established=status.is_established,
        )

    def _drop(self, address: str) -> None:
        caller = self._callers.pop(address, None)
        if caller is not None:
            caller.close()


look = Looker()


def status_of(server: Server) -> Any:
    """All that a server says of its consensus."""
    with connect(server.address, CALL_S) as caller:
        return caller.ask(RAFT_STATUS, Empty(), timeout_s=CALL_S)[0]

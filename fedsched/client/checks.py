"""Runs single checks: an http request, a connection, a command inside the task, a gRPC health question.

Everything a service answers is bounded: heads and bodies are read up to a limit and the rest is left unread. The time
limit is the caller's cancel scope. Whatever goes wrong is an outcome, not an error: a check exists to find it out.
"""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final

import h11
import trio

from fedsched.client.checks_core import OUTPUT_BYTES, CheckKind, Outcome
from fedsched.client.grpc_health import ask_health
from fedsched.drivers.driver import Driver, DriverError, ExecCommand
from fedsched.model.check import CheckStatus

HEAD_BYTES_MAX: Final = 32 * 1024
READ_BYTES: Final = 4096
USER_AGENT: Final = "fedsched-check/1"
PASSING_BELOW: Final = 400


@dataclass(frozen=True, slots=True)
class Target:
    """Where a service is asked, and how."""

    host: str = ""
    port: int = 0
    path: str = "/"
    method: str = "GET"
    headers: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    body: str = ""
    is_tls: bool = False
    skip_verify: bool = False
    server_name: str = ""
    grpc_service: str = ""

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class Script:
    """A command inside a task."""

    driver: Driver
    task_id: Callable[[], str]
    """What the driver calls the task now; empty while it does not run."""
    argv: tuple[str, ...]
    timeout_s: float


Run = Callable[[], Awaitable[Outcome]]


async def run_check(kind: CheckKind, target: Target, timeout_s: float) -> Outcome:
    """Ask a service once, for at most so long."""
    if not target.host or not target.port:
        return _failed("its service has no address or no port")
    with trio.move_on_after(timeout_s):
        try:
            match kind:
                case CheckKind.HTTP:
                    return await _http(target)
                case CheckKind.GRPC:
                    return await _grpc(target)
                case _:
                    return await _tcp(target)
        except (OSError, trio.BrokenResourceError, ssl.SSLError, ssl.CertificateError) as error:
            return _failed(f"{target.authority}: {_reason(error)}")
        except h11.ProtocolError as error:
            return _failed(f"{target.authority}: not a proper http exchange: {error}")
    return _failed(f"{target.authority}: no answer within {timeout_s:g} s")


async def run_script(script: Script) -> Outcome:
    """Run a command inside its task: 0 passes, 1 is a warning, anything else fails."""
    task_id = script.task_id()
    if not task_id:
        return _failed("the task does not run")
    try:
        with trio.move_on_after(script.timeout_s):
            result = await script.driver.exec_task(task_id, ExecCommand(argv=script.argv), script.timeout_s)
            output = result.output[:OUTPUT_BYTES].decode(errors="replace")
            if result.signal:
                return Outcome(CheckStatus.FAILURE, f"ended by signal {result.signal}\n{output}", 128 + result.signal)
            status = {0: CheckStatus.SUCCESS, 1: CheckStatus.WARNING}.get(result.exit_code, CheckStatus.FAILURE)
            return Outcome(status, output, result.exit_code)
    except DriverError as error:
        return _failed(f"the command could not be run: {error}")
    return _failed(f"the command did not end within {script.timeout_s:g} s")


async def _tcp(target: Target) -> Outcome:
    stream = await trio.open_tcp_stream(target.host, target.port)
    await trio.aclose_forcefully(stream)
    return Outcome(CheckStatus.SUCCESS, "connected")


async def _http(target: Target) -> Outcome:
    connection = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)
    data = _request_bytes(connection, target)
    stream = await _open(target)
    try:
        await stream.send_all(data)
        return await _read_answer(connection, stream)
    finally:
        await trio.aclose_forcefully(stream)


async def _grpc(target: Target) -> Outcome:
    stream = await _open(target, alpn="h2")
    try:
        problem = await ask_health(stream, target.authority, target.grpc_service, is_tls=target.is_tls)
    finally:
        await trio.aclose_forcefully(stream)
    return _failed(f"{target.authority}: {problem}") if problem else Outcome(CheckStatus.SUCCESS, "serving")


async def _open(target: Target, alpn: str = "http/1.1") -> trio.abc.Stream:
    stream: trio.abc.Stream = await trio.open_tcp_stream(target.host, target.port)
    if not target.is_tls:
        return stream
    secured = trio.SSLStream(
        stream,
        _tls(target.skip_verify, alpn),
        server_hostname=target.server_name or target.host,
        https_compatible=True,
    )
    try:
        await secured.do_handshake()
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return secured


@lru_cache(maxsize=8)
def _tls(skip_verify: bool, alpn: str) -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols([alpn])
    if skip_verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _request_bytes(connection: h11.Connection, target: Target) -> bytes:
    """The whole request. h11 refuses names and values that would smuggle in another one."""
    body = target.body.encode()
    headers = [(name, value) for name, values in target.headers.items() for value in values]
    known = {name.lower() for name, _ in headers}
    own = [("Host", target.authority), ("User-Agent", USER_AGENT), ("Accept", "*/*")]
    headers = [(name, value) for name, value in own if name.lower() not in known] + headers
    headers = [(name, value) for name, value in headers if name.lower() not in ("connection", "content-length")]
    headers += [("Connection", "close")]
    if body:
        headers += [("Content-Length", str(len(body)))]
    path = target.path if target.path.startswith("/") else f"/{target.path}"
    try:
        request = h11.Request(method=target.method or "GET", target=path.encode(), headers=_encoded(headers))
    except UnicodeEncodeError as error:
        raise h11.LocalProtocolError(f"a header is not plain text: {error}") from None
    data = connection.send(request) or b""
    if body:
        data += connection.send(h11.Data(data=body)) or b""
    return data + (connection.send(h11.EndOfMessage()) or b"")


def _encoded(headers: list[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.encode("ascii"), value.encode("latin-1")) for name, value in headers]


async def _read_answer(connection: h11.Connection, stream: trio.abc.Stream) -> Outcome:
    status = 0
    output = bytearray()
    while len(output) < OUTPUT_BYTES:
        event = connection.next_event()
        match event:
            case h11.NEED_DATA:
                connection.receive_data(bytes(await stream.receive_some(READ_BYTES)))
            case h11.Response():
                status = event.status_code
                if status == 200:
                    break
            case h11.Data():
                output += event.data
            case h11.EndOfMessage() | h11.ConnectionClosed() | h11.PAUSED:
                break
    verdict = CheckStatus.SUCCESS if 0 < status < PASSING_BELOW else CheckStatus.FAILURE
    text = "" if status == 200 else bytes(output[:OUTPUT_BYTES]).decode(errors="replace")
    return Outcome(verdict, text, status)


def _failed(output: str) -> Outcome:
    return Outcome(CheckStatus.FAILURE, output)


def _reason(error: BaseException) -> str:
    """The words of the operating system, wherever they are in what was raised."""
    if isinstance(error, BaseExceptionGroup):
        return _reason(error.exceptions[0])
    strerror = getattr(error, "strerror", None)
    if not strerror and error.__cause__ is not None:
        return _reason(error.__cause__)
    return str(strerror or error) or type(error).__name__

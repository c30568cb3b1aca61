"""Checks against real services on loopback: what passes, what fails, and what cannot hurt the one who asks."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import trio
import trio.testing

from fedsched.client.checks import Script, Target, run_check, run_script
from fedsched.client.checks_core import CheckKind, Outcome
from fedsched.client.grpc_health import FRAME_HEAD
from fedsched.drivers.driver import Driver, DriverError, ExecResult
from fedsched.model.check import CheckStatus
from tests.client.fake_region import FakeDriver
from tests.server.certificates import NEEDS_OPENSSL, an_authority

Serve = Callable[[trio.SocketStream], Awaitable[None]]


def ask(kind: CheckKind, serve: Serve, *, timeout_s: float = 5.0, **fields: Any) -> Outcome:
    """Run one check against something that listens on loopback."""

    async def one(stream: trio.SocketStream) -> None:
        try:
            await serve(stream)
        except trio.BrokenResourceError:
            pass
        finally:
            await trio.aclose_forcefully(stream)

    async def main() -> Outcome:
        async with trio.open_nursery() as nursery:
            listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
            port = listeners[0].socket.getsockname()[1]
            nursery.start_soon(trio.serve_listeners, one, listeners)
            outcome = await run_check(kind, Target(host="127.0.0.1", port=port, **fields), timeout_s)
            nursery.cancel_scope.cancel()
        return outcome

    return trio.run(main)


def answering(answer: bytes, seen: list[bytes] | None = None, *, stays: bool = False) -> Serve:
    async def serve(stream: trio.SocketStream) -> None:
        data = bytes(await stream.receive_some(65536))
        if seen is not None:
            seen.append(data)
        await stream.send_all(answer)
        if stays:
            await trio.sleep_forever()

    return serve


def test_http_passes_below_400_and_keeps_no_output_of_a_plain_200() -> None:
    seen: list[bytes] = []
    outcome = ask(
        CheckKind.HTTP, answering(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok", seen), path="/health?x=1"
    )

    assert outcome == Outcome(CheckStatus.SUCCESS, "", 200)
    head = seen[0].decode().split("\r\n")
    assert head[0] == "GET /health?x=1 HTTP/1.1"
    assert any(line.startswith("Host: 127.0.0.1:") for line in head)
    assert "User-Agent: fedsched-check/1" in head


@pytest.mark.parametrize(
    ("answer", "status", "output"),
    [
        (b"HTTP/1.1 204 No Content\r\n\r\n", "success", ""),
        (b"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n", "success", ""),
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnope", "failure", "nope"),
        (b"HTTP/1.1 503 X\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nbad\r\n0\r\n\r\n", "failure", "bad"),
        (b"HTTP/1.0 500 X\r\n\r\nuntil the end", "failure", "until the end"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Made\r\nContent-Length: 1\r\n\r\nx", "success", "x"),
    ],
)
def test_http_reads_answers_of_all_usual_forms(answer: bytes, status: str, output: str) -> None:
    outcome = ask(CheckKind.HTTP, answering(answer))

    assert (outcome.status, outcome.output) == (status, output)


def test_method_headers_host_and_body_are_as_the_job_says() -> None:
    seen: list[bytes] = []
    ask(
        CheckKind.HTTP,
        answering(b"HTTP/1.1 200 OK\r\n\r\n", seen),
        method="POST",
        path="ping",
        headers={"Host": ("shop.example",), "X-Two": ("a", "b"), "Content-Length": ("99",)},
        body="héllo",
    )

    text = seen[0].decode()
    assert text.startswith("POST /ping HTTP/1.1\r\n")
    assert text.count("Host:") == 1
    assert "Host: shop.example" in text
    assert "X-Two: a\r\nX-Two: b" in text
    assert "Content-Length: 6\r\n" in text
    assert text.endswith("\r\n\r\nhéllo")


@pytest.mark.parametrize(
    "fields",
    [
        {"headers": {"X": ("a\r\nEvil: yes",)}},
        {"headers": {"X\r\nEvil": ("a",)}},
        {"headers": {"Ü": ("a",)}},
        {"path": "/a b"},
        {"path": "/a\r\nEvil: yes"},
        {"method": "GET /"},
    ],
)
def test_nothing_can_be_smuggled_into_a_request(fields: dict[str, Any]) -> None:
    seen: list[bytes] = []
    outcome = ask(CheckKind.HTTP, answering(b"HTTP/1.1 200 OK\r\n\r\n", seen), **fields)

    assert outcome.status is CheckStatus.FAILURE
    assert not any(b"Evil" in data for data in seen)


@pytest.mark.parametrize(
    "answer",
    [b"", b"not http at all\r\n\r\n", b"HTTP/1.1 200 OK\r\nX: " + b"a" * 100_000, b"HTTP/1.1 OK\r\n\r\n"],
    ids=["nothing", "noise", "endless head", "no number"],
)
def test_what_is_no_answer_fails(answer: bytes) -> None:
    assert ask(CheckKind.HTTP, answering(answer)).status is CheckStatus.FAILURE


def test_an_endless_answer_is_read_up_to_the_limit_only() -> None:
    async def serve(stream: trio.SocketStream) -> None:
        await stream.receive_some(65536)
        await stream.send_all(b"HTTP/1.1 500 X\r\n\r\n")
        while True:
            await stream.send_all(b"x" * 65536)

    outcome = ask(CheckKind.HTTP, serve)

    assert (outcome.status, outcome.output) == (CheckStatus.FAILURE, "x" * 3072)


def test_a_service_that_says_nothing_fails_when_its_time_is_up() -> None:
    async def serve(stream: trio.SocketStream) -> None:
        await trio.sleep_forever()

    outcome = ask(CheckKind.HTTP, serve, timeout_s=0.05)

    assert outcome.status is CheckStatus.FAILURE
    assert "no answer within 0.05 s" in outcome.output


def test_tcp_connects_or_says_why_not() -> None:
    assert ask(CheckKind.TCP, lambda stream: stream.aclose()).status is CheckStatus.SUCCESS

    async def nobody() -> Outcome:
        (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
        port = listener.socket.getsockname()[1]
        await listener.aclose()
        return await run_check(CheckKind.TCP, Target(host="127.0.0.1", port=port), 5.0)

    refused = trio.run(nobody)
    assert refused.status is CheckStatus.FAILURE
    assert "refused" in refused.output.lower()
    nowhere = trio.run(run_check, CheckKind.TCP, Target(), 5.0)
    assert "no address" in nowhere.output


@NEEDS_OPENSSL
@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"skip_verify": True}, "success"),
        ({}, "failure"),
        ({"skip_verify": True, "server_name": "server.eu.fedsched"}, "success"),
    ],
)
def test_https_checks_certificates_unless_told_not_to(tmp_path: Path, fields: dict[str, Any], status: str) -> None:
    context = _server_tls(tmp_path)

    async def serve(stream: trio.SocketStream) -> None:
        secured = trio.SSLStream(stream, context, server_side=True)
        await secured.receive_some(65536)
        await secured.send_all(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")

    assert ask(CheckKind.HTTP, serve, is_tls=True, **fields).status == status


def _server_tls(directory: Path) -> ssl.SSLContext:
    files = an_authority(directory).server()
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.cert_file, files.key_file)
    return context


def a_frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return FRAME_HEAD.pack(len(payload) >> 16, len(payload) & 0xFFFF, kind, flags, stream) + payload


SERVING = a_frame(0, 0, 1, b"\0\0\0\0\x02\x08\x01")


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (a_frame(4, 0, 0, b"") + a_frame(6, 0, 0, b"12345678") + a_frame(1, 4, 1, b"\x88") + SERVING, ""),
        (a_frame(0, 8, 1, b"\x02\0\0\0\0\x02\x08\x01??"), ""),
        (a_frame(0, 0, 1, b"\0\0\0\0\x02\x08\x02"), "not serving"),
        (a_frame(0, 0, 1, b"\0\0\0\0\x00"), "unknown"),
        (a_frame(0, 0, 1, b"x"), "no plain gRPC"),
        (a_frame(1, 5, 1, b"\x88"), "knows no health"),
        (a_frame(3, 0, 1, b"\0\0\0\0"), "refused"),
        (a_frame(7, 0, 0, b""), "goes away"),
        (b"", "without an answer"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "without an answer"),
        (a_frame(4, 1, 0, b"") * 10_000, "without an answer"),
    ],
)
def test_grpc_asks_the_health_service(answer: bytes, words: str) -> None:
    seen: list[bytes] = []
    outcome = ask(CheckKind.GRPC, answering(answer, seen), grpc_service="shop")

    assert outcome.status is (CheckStatus.FAILURE if words else CheckStatus.SUCCESS)
    assert words in outcome.output
    assert seen[0].startswith(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
    assert b"/grpc.health.v1.Health/Check" in seen[0]
    assert b"\x0a\x04shop" in seen[0]


@pytest.mark.parametrize(
    ("result", "status", "code"),
    [
        (ExecResult(0, output=b"fine"), "success", 0),
        (ExecResult(1, output=b"hm"), "warning", 1),
        (ExecResult(2), "failure", 2),
        (ExecResult(0, signal=9), "failure", 137),
        (DriverError("no such task"), "failure", 0),
    ],
)
def test_a_script_passes_warns_or_fails_by_its_exit_code(result: Any, status: str, code: int) -> None:
    driver = FakeDriver()
    driver.result = result
    script = Script(cast(Driver, driver), lambda: "id", ("/bin/check", "-q"), 5.0)
    outcome = trio.run(run_script, script)

    assert (outcome.status, outcome.code) == (status, code)
    assert driver.commands == [("/bin/check", "-q")]


def test_a_script_needs_a_running_task_and_an_end() -> None:
    driver = FakeDriver()
    driver.takes_s = 60.0
    clock = trio.testing.MockClock(autojump_threshold=0)
    slow = trio.run(run_script, Script(cast(Driver, driver), lambda: "id", ("x",), 5.0), clock=clock)
    down = trio.run(partial(run_script, Script(cast(Driver, driver), lambda: "", ("x",), 5.0)))

    assert "did not end within 5 s" in slow.output
    assert "does not run" in down.output

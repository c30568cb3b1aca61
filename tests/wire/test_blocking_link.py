"""The blocking client against a real trio server, and against servers that misbehave."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import trio

from fedsched.model.errors import BadRequest, DeadlineExceeded, Unavailable
from fedsched.wire import frames
from fedsched.wire.address import Address
from fedsched.wire.blocking_link import BlockingLink, connect
from fedsched.wire.blocking_websocket import BlockingWebSocket
from fedsched.wire.call_state import Flow
from fedsched.wire.carrier import CarrierClosed
from fedsched.wire.errors import LinkClosed, RemoteError
from fedsched.wire.limits import LinkLimits
from fedsched.wire.link import Link
from fedsched.wire.link_calls import ServedCall
from fedsched.wire.packing import pack
from fedsched.wire.tls import TlsOptions
from fedsched.wire.websocket import accept_websocket
from tests.wire.builders import GOOD_HELLO, listen, message
from tests.wire.test_websocket import CERTS, Host, with_host


async def handler(call: ServedCall) -> bytes:
    match call.method:
        case "Echo":
            return call.payload
        case "Down":
            for number in range(50):
                await call.send(b"%d" % number * 50_000)
            return b"sent"
        case "Up":
            size = 0
            async for item in call:
                size += len(item)
            return b"%d" % size
        case "Back":
            with pytest.raises(RemoteError, match="serves nothing"):
                await call.link.call("Anything", b"")
            return b"refused"
        case "Refuse":
            raise Unavailable("not now", hint="later")
        case _:
            await trio.sleep_forever()
            raise AssertionError


def with_agent(body: Callable[[Address], None]) -> None:
    """Run a blocking body in a thread beside a real agent's websocket."""

    async def serve(stream: trio.abc.Stream) -> None:
        async with trio.open_nursery() as nursery:
            carrier = await accept_websocket(nursery, stream, "client")
            await Link(carrier, is_opener=False, handler=handler).run()

    async def main() -> None:
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                port = await listen(nursery, serve)
                await trio.to_thread.run_sync(body, Address("127.0.0.1", port))
                nursery.cancel_scope.cancel()

    trio.run(main)


def test_calls_of_all_sizes_are_answered() -> None:
    def body(address: Address) -> None:
        with connect(address) as link:
            for size in (0, 1, 125, 126, 65_535, 65_536, 900_000):
                assert link.call("Echo", b"x" * size, 10) == b"x" * size
            assert link.call("Back", b"", 10) == b"refused"

    with_agent(body)


def test_streams_flow_both_ways_under_credit() -> None:
    def body(address: Address) -> None:
        with connect(address) as link:
            down = link.open_call("Down", b"", Flow.DOWN, 10)
            items = list(down.items())
            assert [item[:1] for item in items[:3]] == [b"0", b"1", b"2"]
            assert len(items) == 50
            assert down.wait_reply() == b"sent"
            up = link.open_call("Up", b"", Flow.UP, 10)
            for _ in range(30):
                assert up.send(b"x" * 100_000)
            up.end_items()
            assert up.wait_reply() == b"3000000"
            assert not up.send(b"late")
            up.cancel()

    with_agent(body)


def test_refusals_and_deadlines_are_told_apart() -> None:
    def body(address: Address) -> None:
        with connect(address) as link:
            with pytest.raises(RemoteError, match="not now") as caught:
                link.call("Refuse", b"", 10)
            assert caught.value.code == "unavailable"
            with pytest.raises(DeadlineExceeded, match="Hang was not answered in time"):
                link.call("Hang", b"", 0.05)
            hanging = link.open_call("Hang", b"", Flow.DOWN, 0.05)
            with pytest.raises(DeadlineExceeded):
                next(hanging.items())
            cancelled = link.open_call("Hang", b"", Flow.UP, 10)
            cancelled.cancel()
            with pytest.raises(RemoteError, match="cancelled"):
                cancelled.send(b"x")
            assert link.call("Echo", b"still fine", 10) == b"still fine"
        with pytest.raises(LinkClosed):
            link.call("Echo", b"")

    with_agent(body)


def test_over_tls_and_only_with_somebody_who_vouches() -> None:
    import ssl

    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(CERTS / "localhost.pem", CERTS / "localhost.key")

    def talk(address: Address) -> None:
        trusted = TlsOptions(ca_cert=str(CERTS / "localhost.pem"))
        for options in (trusted, trusted._replace(server_name="localhost"), TlsOptions(skip_verify=True)):
            with connect(address, tls=options, timeout_s=5) as link:
                assert link.call("Echo", b"secret", 10) == b"secret"
        with pytest.raises(Unavailable, match="cannot reach https"):
            connect(address, timeout_s=5)

    async def body(nursery: trio.Nursery, address: Address) -> None:
        await trio.to_thread.run_sync(talk, address)

    with_host(Host(tls=tls), body)


def test_files_for_tls_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    for options in (TlsOptions(ca_cert="/nowhere/ca.pem"), TlsOptions(client_cert=str(tmp_path))):
        with pytest.raises(BadRequest, match=r"/nowhere/ca\.pem|cannot load certificate"):
            options.context()
    options = TlsOptions(client_cert=str(CERTS / "localhost.pem"), client_key=str(CERTS / "localhost.key"))
    assert options.context().check_hostname


def test_over_a_unix_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "agent.sock")
    with fake_agent(HELLO_AND_REPLY, path) as address, connect(address) as link:
        assert link.call("Any", b"", 5) == b"reply"


def test_nobody_there_is_unavailable_with_a_hint() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(Unavailable, match="cannot reach") as caught:
            connect(Address("127.0.0.1", unused.getsockname()[1]))
    assert "FEDSCHED_ADDR" in caught.value.hint


def server_frame(opcode: int, payload: bytes, *, first: int = 0x80, second: int = 0) -> bytes:
    size = len(payload)
    head = bytes([first | opcode])
    if size < 126:
        return head + bytes([second | size]) + payload
    return head + bytes([second | 126]) + size.to_bytes(2, "big") + payload


def packed(*sent: frames.Frame) -> bytes:
    return pack([(message(frame), b"") for frame in sent])


HELLO_AND_REPLY = server_frame(2, packed(GOOD_HELLO, frames.Reply(1, b"reply")))


@contextmanager
def fake_agent(script: bytes, path: str = "", handshake: Callable[[bytes], bytes] | None = None):  # type: ignore[no-untyped-def]
    """Listens once, shakes hands, sends the script whatever it is told, and closes when the client has."""
    from wsproto.utilities import generate_accept_token

    def accept(request: bytes) -> bytes:
        key = request.partition(b"Sec-WebSocket-Key: ")[2].partition(b"\r\n")[0]
        return b"HTTP/1.1 101 Go\r\nSec-WebSocket-Accept: %s\r\n\r\n" % generate_accept_token(key)

    def run() -> None:
        connection, _ = listener.accept()
        with connection, suppress(OSError):  # the client may be gone before the script is over
            request = b""
            while b"\r\n\r\n" not in request:
                request += connection.recv(4096)
            connection.sendall((handshake or accept)(request) + script)
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65536):
                pass

    listener = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
    with listener:
        listener.bind(path or ("127.0.0.1", 0))
        listener.listen()
        thread = threading.Thread(target=run)
        thread.start()
        if path:
            yield Address("localhost", 4646, socket_path=path)
        else:
            yield Address("127.0.0.1", listener.getsockname()[1])
        thread.join(5)
        assert not thread.is_alive()


def test_fragments_pings_and_pongs_are_understood() -> None:
    whole = packed(frames.Reply(1, b"y" * 70_000))
    half = 60_000
    script = (
        server_frame(2, packed(GOOD_HELLO))
        + server_frame(9, b"are you there")
        + server_frame(2, whole[:half], first=0)
        + server_frame(10, b"pong")
        + b"\x80\x7f"
        + (len(whole) - half).to_bytes(8, "big")
        + whole[half:]
    )
    with fake_agent(script) as address, connect(address) as link:
        assert link.call("Any", b"", 5) == b"y" * 70_000


@pytest.mark.parametrize(
    ("script", "why"),
    [
        (b"", "the other end closed"),
        (server_frame(8, b"\x03\xe9bye"), r"websocket closed \(1001, bye\)"),
        (server_frame(8, b""), r"websocket closed \(no code\)"),
        (server_frame(1, b"text"), "frame of kind 1"),
        (server_frame(2, b"x", second=0x80), "extensions or a mask"),
        (server_frame(2, b"x", first=0xC0), "extensions or a mask"),
        (server_frame(0, b"x"), "out of order"),
        (server_frame(9, b"x" * 126), "frame of 126 bytes"),
        (b"\x82\x7f" + b"\xff" * 8, "at most"),
        (server_frame(2, b"x" * 60_000)[:40], "the other end closed"),
        (server_frame(2, b""), "no row of frames"),
        (server_frame(2, b"\x00\x00\x00\x01"), "no row of frames"),
        (server_frame(2, packed(frames.Ping(1))), "before a greeting"),
        (server_frame(2, packed(frames.Goaway("forbidden", "no token"))), "no token"),
    ],
)
def test_a_server_that_misbehaves_ends_the_link_with_a_reason(script: bytes, why: str) -> None:
    with fake_agent(script) as address, connect(address) as link, pytest.raises(RemoteError, match=why):
        link.call("Any", b"", 5)


def test_a_message_that_grows_beyond_the_limit_is_refused() -> None:
    part = b"\x7e" + (60_000).to_bytes(2, "big") + b"x" * 60_000
    script = b"\x02" + part + (b"\x00" + part) * 10
    limits = LinkLimits(frame_bytes_max=300_000)
    with fake_agent(script) as address, connect(address, limits=limits) as link:
        call = link.open_call("Any", b"", Flow.NONE, 5)
        with pytest.raises(RemoteError, match="more than 300004 bytes"):
            call.wait_reply()


@pytest.mark.parametrize(
    ("response", "error", "why"),
    [
        (b"SSH-2.0-OpenSSH\r\n\r\n", Unavailable, "does not speak HTTP"),
        (b"HTTP/1.1 nonsense\r\n\r\n", Unavailable, "does not speak HTTP"),
        (b"HTTP/1.1 200 OK\r\n\r\n", RemoteError, "answered 200: no reason given"),
        (b"HTTP/1.1 429 Busy\r\nContent-Length: 9\r\n\r\ntry later", RemoteError, "answered 429: try later"),
        (b"HTTP/1.1 500 X\r\nContent-Length: 99\r\n\r\ncut", RemoteError, "answered 500: cut"),
        (b"HTTP/1.1 101 Go\r\nSec-WebSocket-Accept: wrong\r\n\r\n", Unavailable, "a wrong one"),
        (b"HTTP/1.1 101 Go\r\n" + b"x: y\r\n" * 5000, Unavailable, "endless headers"),
        (b"", Unavailable, "closed the connection"),
    ],
)
def test_a_handshake_that_fails_says_how(response: bytes, error: type[Exception], why: str) -> None:
    with fake_agent(b"", handshake=lambda request: response) as address, pytest.raises(error, match=why):
        connect(address, timeout_s=5)


def test_a_server_that_never_answers_the_handshake_is_given_up_on() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address("127.0.0.1", listener.getsockname()[1])
        with pytest.raises(DeadlineExceeded, match="no answer in time"):
            connect(address, timeout_s=0.05)


class BrokenCarrier:
    """Takes nothing any more."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def set_timeout(self, timeout_s: float | None) -> None:
        pass

    def send(self, message: bytes) -> None:
        raise self._error

    def close(self) -> None:
        pass


def test_a_write_that_times_out_ends_the_link() -> None:
    carrier = BrokenCarrier(DeadlineExceeded("stuck"))
    with BlockingLink(carrier) as link, pytest.raises(LinkClosed, match="stuck"):  # type: ignore[arg-type]
        link.call("Any", b"")


def test_writes_to_a_connection_that_is_gone_are_weather() -> None:
    near, far = socket.socketpair()
    with fake_agent(HELLO_AND_REPLY) as address, connect(address) as link:
        real, link._carrier._socket = link._carrier._socket, near
        far.close()
        with pytest.raises(RemoteError, match="write failed"):
            link.call("Any", b"x" * 100_000, 5)
        real.close()
    near.close()


def test_a_connection_that_breaks_before_the_handshake_is_sent_is_weather() -> None:
    near, far = socket.socketpair()
    far.close()
    with near, pytest.raises(Unavailable, match="closed the connection: write failed"):
        BlockingWebSocket(near, Address("host", 1), path="/", message_bytes_max=1)


def test_a_message_that_comes_in_pieces_over_a_long_time_is_put_together() -> None:
    """The reader's patience runs out again and again in the middle of frames; nothing is lost."""
    near, far = socket.socketpair()
    with fake_agent(b"") as address, connect(address) as link, near, far:
        websocket = link._carrier
        real, websocket._socket = websocket._socket, near
        script = server_frame(2, b"a" * 300, first=0) + server_frame(9, b"ping") + server_frame(0, b"b" * 10)
        near.settimeout(0.001)
        got = b""
        for at in range(0, len(script), 7):
            far.sendall(script[at : at + 7])
            with suppress(DeadlineExceeded):
                got = websocket.receive()
        assert got == b"a" * 300 + b"b" * 10
        websocket._socket = real


def test_a_socket_that_fails_in_either_direction_is_weather() -> None:
    class Failing:
        def recv(self, size: int) -> bytes:
            raise ConnectionResetError("reset")

        def sendall(self, data: bytes) -> None:
            raise TimeoutError

    with fake_agent(b"") as address, connect(address) as link:
        websocket = link._carrier
        real, websocket._socket = websocket._socket, Failing()  # type: ignore[assignment]
        with pytest.raises(CarrierClosed, match="read failed: reset"):
            websocket.receive()
        with pytest.raises(DeadlineExceeded, match="does not take what we send"):
            websocket.send(b"x")
        websocket._socket = real


@pytest.mark.bare
def test_a_blocking_link_needs_no_trio_and_no_records() -> None:
    code = (
        "import sys, fedsched.wire.blocking_link\n"
        "heavy = {'trio', 'msgspec', 'wsproto', 'ssl', 'dataclasses', 'trio_websocket', 'h11'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

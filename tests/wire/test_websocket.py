"""Frames over websockets on loopback: both ends, refusals, hostile bytes."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest
import trio
import trio.testing

from fedsched.model.errors import Busy, Unavailable
from fedsched.wire import frames
from fedsched.wire.address import Address
from fedsched.wire.call_state import Flow
from fedsched.wire.carrier import CarrierClosed
from fedsched.wire.errors import ProtocolViolation, RemoteError
from fedsched.wire.limits import LinkLimits
from fedsched.wire.link import Link, open_link
from fedsched.wire.link_calls import ServedCall
from fedsched.wire.packing import pack
from fedsched.wire.tls import TlsOptions
from fedsched.wire.websocket import Handshakes, WebSocketDoor, accept_websocket, connect_websocket
from tests.wire.builders import GOOD_HELLO, listen, message

CERTS = Path(__file__).parent / "certs"
UPGRADE = (
    b"GET /v1/rpc HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n%s\r\n"
)


async def echo(call: ServedCall) -> bytes:
    if call.method == "Down":
        for _ in range(20):
            await call.send(b"x" * 200_000)
    return call.payload


class Host:
    """A websocket server for one test; `refused` gathers why handshakes failed."""

    def __init__(self, door: WebSocketDoor | None = None, tls: ssl.SSLContext | None = None) -> None:
        self.door = door or WebSocketDoor()
        self.tls = tls
        self.refused: list[str] = []
        self.closed: list[str] = []
        self.ended = trio.Event()
        """Set when a connection has come to its end, one way or the other."""

    async def serve(self, stream: trio.abc.Stream) -> None:
        if self.tls is not None:
            stream = trio.SSLStream(stream, self.tls, server_side=True, https_compatible=True)
        async with trio.open_nursery() as nursery:
            try:
                carrier = await accept_websocket(nursery, stream, "client", self.door)
            except CarrierClosed as error:
                self.refused.append(str(error))
                self.ended.set()
                return
            link = Link(carrier, is_opener=False, handler=echo)
            self.closed.append((await link.run()).message)
            self.ended.set()


def with_host(host: Host, body: Callable[[trio.Nursery, Address], Awaitable[None]]) -> None:
    async def main() -> None:
        with trio.fail_after(20):
            async with trio.open_nursery() as nursery:
                port = await listen(nursery, host.serve)
                await body(nursery, Address("127.0.0.1", port, is_tls=host.tls is not None))
                nursery.cancel_scope.cancel()

    trio.run(main)


def test_calls_and_streams_over_a_websocket() -> None:
    host = Host()

    async def body(nursery: trio.Nursery, address: Address) -> None:
        carrier = await connect_websocket(nursery, address)
        async with open_link(carrier, is_opener=True) as link:
            assert await link.call("Echo", b"x" * 900_000) == b"x" * 900_000
            async with link.open_call("Down", b"", Flow.DOWN) as call:
                assert sum([len(item) async for item in call]) == 4_000_000
            async with trio.open_nursery() as calls:
                for _ in range(50):
                    calls.start_soon(link.call, "Echo", b"small")
        await host.ended.wait()

    with_host(host, body)
    assert host.closed == ["no longer needed"]


def test_a_websocket_over_tls() -> None:
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(CERTS / "localhost.pem", CERTS / "localhost.key")

    async def body(nursery: trio.Nursery, address: Address) -> None:
        context = TlsOptions(ca_cert=str(CERTS / "localhost.pem")).context()
        carrier = await connect_websocket(nursery, address, ssl_context=context)
        async with open_link(carrier, is_opener=True) as link:
            assert await link.call("Echo", b"secret") == b"secret"
        with pytest.raises(Unavailable):
            await connect_websocket(nursery, address)  # nobody vouches for this certificate

    with_host(Host(tls=tls), body)


def test_a_websocket_over_a_unix_socket(tmp_path: Path) -> None:
    host = Host()
    path = str(tmp_path / "agent.sock")

    async def main() -> None:
        with trio.socket.socket(trio.socket.AF_UNIX) as listener:
            await listener.bind(path)
            listener.listen()
            async with trio.open_nursery() as nursery:
                serve = partial(trio.serve_listeners, host.serve, [trio.SocketListener(listener)])
                nursery.start_soon(serve)
                carrier = await connect_websocket(nursery, Address("localhost", 1, socket_path=path))
                async with open_link(carrier, is_opener=True) as link:
                    assert await link.call("Echo", b"local") == b"local"
                nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_wrong_path_is_answered_404_with_the_right_one() -> None:
    host = Host()

    async def body(nursery: trio.Nursery, address: Address) -> None:
        with pytest.raises(RemoteError, match=r"404: no websocket at '/v1/jobs'.*/v1/rpc") as caught:
            await connect_websocket(nursery, address, path="/v1/jobs")
        assert caught.value.http_status == 404

    with_host(host, body)
    assert "no websocket at '/v1/jobs'" in host.refused[0]


def test_pages_of_other_sites_are_refused_and_a_configured_one_is_not() -> None:
    async def answer_to(address: Address, origin: bytes) -> bytes:
        stream = await trio.open_tcp_stream(address.host, address.port)
        async with stream:
            await stream.send_all(UPGRADE % (b"Origin: %s\r\n" % origin))
            return bytes(await stream.receive_some(1000))

    async def body(nursery: trio.Nursery, address: Address) -> None:
        assert (await answer_to(address, b"https://evil.example")).startswith(b"HTTP/1.1 403")
        assert (await answer_to(address, b"https://ui.example")).startswith(b"HTTP/1.1 101")

    with_host(Host(WebSocketDoor(check_origin=lambda origin: origin == "https://ui.example")), body)


def test_pages_are_refused_unless_configured() -> None:
    host = Host()

    async def body(nursery: trio.Nursery, address: Address) -> None:
        async with await trio.open_tcp_stream(address.host, address.port) as stream:
            await stream.send_all(UPGRADE % b"Origin: null\r\n")
            assert b"403" in await stream.receive_some(1000)
            await host.ended.wait()

    with_host(host, body)
    assert "pages of 'null'" in host.refused[0]


@pytest.mark.parametrize(
    "data", [b"\x16\x03\x01\x02\x00\x01garbage\r\n\r\n", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b""]
)
def test_what_is_no_handshake_is_turned_away_at_once(data: bytes) -> None:
    host = Host()

    async def body(nursery: trio.Nursery, address: Address) -> None:
        async with await trio.open_tcp_stream(address.host, address.port) as stream:
            await stream.send_all(data)
            await stream.send_eof()
            while await stream.receive_some(1000):
                pass
        await host.ended.wait()

    with_host(host, body)
    assert host.refused[0].startswith("websocket handshake: ")


def test_a_handshake_has_its_time_and_no_more() -> None:
    host = Host(WebSocketDoor(handshake_s=0.05))

    async def body(nursery: trio.Nursery, address: Address) -> None:
        async with await trio.open_tcp_stream(address.host, address.port) as stream:
            await stream.send_all(b"GET /v1/rpc HTTP/1.1\r\n")
            assert await stream.receive_some(1000) == b""

    with_host(host, body)
    assert host.refused == ["websocket handshake: not done within 0.05 s"]


def test_one_handshake_too_many_is_turned_away() -> None:
    handshakes = Handshakes(1)
    host = Host(WebSocketDoor(handshakes=handshakes))

    async def body(nursery: trio.Nursery, address: Address) -> None:
        with handshakes.one():
            async with await trio.open_tcp_stream(address.host, address.port) as second:
                assert await second.receive_some(100) == b""

    with_host(host, body)
    assert "1 connections are being set up" in host.refused[0]


def test_a_place_for_a_handshake_is_given_back() -> None:
    handshakes = Handshakes(1)
    with handshakes.one(), pytest.raises(Busy), handshakes.one():
        pass
    with handshakes.one():
        pass


def masked(opcode: int, payload: bytes, *, is_last: bool = True) -> bytes:
    """A client's websocket frame; a mask of zeros leaves the payload readable."""
    first = (0x80 if is_last else 0) | opcode
    if len(payload) < 126:
        return bytes([first, 0x80 | len(payload)]) + b"\0\0\0\0" + payload
    if len(payload) < 65536:
        return bytes([first, 0xFE]) + len(payload).to_bytes(2, "big") + b"\0\0\0\0" + payload
    return bytes([first, 0xFF]) + len(payload).to_bytes(8, "big") + b"\0\0\0\0" + payload


HELLO = masked(2, pack([(message(GOOD_HELLO), b"")]))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (masked(1, b"text"), "text message"),
        (masked(2, b""), "no row of frames"),
        (masked(2, b"\x00\x00\x00\x01"), "no row of frames"),
        (masked(2, pack([(b"nonsense", b"")])), "header alone"),
        (HELLO + masked(2, b"x" * 2_000_000), "Exceeded maximum message size"),
        (HELLO + b"\xff\xff\xff\xff", "websocket closed"),
    ],
)
def test_a_peer_that_breaks_the_rules_loses_its_link_and_nobody_else_does(data: bytes, why: str) -> None:
    host = Host()

    async def body(nursery: trio.Nursery, address: Address) -> None:
        carrier = await connect_websocket(nursery, address)
        async with open_link(carrier, is_opener=True) as honest:
            await honest.wait_ready()
            async with await trio.open_tcp_stream(address.host, address.port) as stream:
                await stream.send_all(UPGRADE % b"")
                await stream.receive_some(1000)
                with trio.move_on_after(5):
                    try:
                        await stream.send_all(data)
                        while await stream.receive_some(100_000):
                            pass
                    except trio.BrokenResourceError:
                        pass
            await host.ended.wait()
            assert await honest.call("Echo", b"fine") == b"fine"

    with_host(host, body)
    assert why in host.closed[0]


def test_endless_empty_fragments_do_not_pile_up() -> None:
    host = Host()

    async def body(nursery: trio.Nursery, address: Address) -> None:
        async with await trio.open_tcp_stream(address.host, address.port) as stream:
            await stream.send_all(UPGRADE % b"")
            await stream.receive_some(1000)
            fragments = masked(2, b"", is_last=False) + masked(0, b"", is_last=False) * 100_000
            sent = 0
            with trio.move_on_after(0.5):
                for _ in range(1000):
                    await stream.send_all(fragments)
                    sent += len(fragments)
            assert sent < 100_000_000  # the rest waits in the kernel: nobody reads it

    with_host(host, body)


def test_a_stranger_is_let_in_with_a_small_message_only() -> None:
    """A large first message is not even read before its sender has greeted."""
    host = Host()

    async def body(nursery: trio.Nursery, address: Address) -> None:
        async with await trio.open_tcp_stream(address.host, address.port) as stream:
            await stream.send_all(UPGRADE % b"")
            await stream.receive_some(1000)
            greeting = masked(2, pack([(message(frames.Hello(1, 1, 1 << 20, 9, b"x" * 5000)), b"")]))
            await stream.send_all(greeting)
            await host.ended.wait()

    with_host(host, body)
    assert "at most 4096" in host.closed[0]


def test_nobody_there_is_unavailable_with_a_hint() -> None:
    async def main() -> None:
        async with trio.open_nursery() as nursery:
            with trio.socket.socket() as unused:
                await unused.bind(("127.0.0.1", 0))
                address = Address("127.0.0.1", unused.getsockname()[1])
                with pytest.raises(Unavailable, match="cannot reach http://127") as caught:
                    await connect_websocket(nursery, address)
        assert "running" in caught.value.hint

    trio.run(main)


def test_a_server_that_is_no_agent_is_unavailable() -> None:
    async def hang_up(stream: trio.abc.Stream) -> None:
        await stream.receive_some(1000)
        await stream.aclose()

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            port = await listen(nursery, hang_up)
            with pytest.raises(Unavailable, match="does not speak with us"):
                await connect_websocket(nursery, Address("127.0.0.1", port))
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_handshake_that_is_cancelled_lets_go_of_its_socket() -> None:
    async def hang(stream: trio.abc.Stream) -> None:
        while await stream.receive_some(1000):
            pass

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            port = await listen(nursery, hang)
            with trio.move_on_after(0.05) as scope:
                await connect_websocket(nursery, Address("127.0.0.1", port))
            assert scope.cancelled_caught
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_a_closed_carrier_says_why_to_both_directions() -> None:
    host = Host(WebSocketDoor(limits=LinkLimits()))

    async def body(nursery: trio.Nursery, address: Address) -> None:
        carrier = await connect_websocket(nursery, address)
        await carrier.aclose()
        with pytest.raises(CarrierClosed, match="websocket closed"):
            await carrier.receive(4096)
        with pytest.raises(CarrierClosed, match="websocket closed"):
            await carrier.send([(b"x", b"")])
        with pytest.raises(CarrierClosed, match="half way"):
            await carrier.send([(b"x", b"")])

    with_host(host, body)


@pytest.mark.parametrize("is_reader_gone_before", [True, False])
def test_closing_says_goodbye_but_waits_for_no_answer_that_nobody_would_read(is_reader_gone_before: bool) -> None:
    async def main() -> None:
        ours, theirs = trio.testing.memory_stream_pair()
        began = trio.current_time()
        async with trio.open_nursery() as outer, trio.open_nursery() as nursery:
            await theirs.send_all(UPGRADE % b"")
            carrier = await accept_websocket(nursery, ours, "client")
            if not is_reader_gone_before:
                outer.start_soon(carrier.aclose)
            await trio.testing.wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
            with trio.CancelScope(shield=True):
                await trio.testing.wait_all_tasks_blocked()
                await carrier.aclose()

        assert trio.current_time() == began
        received = b""
        while data := await theirs.receive_some():
            received += data
        assert received.endswith(b"\x88\x02\x03\xe8")

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0.01))


def test_protocol_violation_is_an_error_an_operator_can_read() -> None:
    assert ProtocolViolation("x").http_status == 502

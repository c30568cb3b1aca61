"""Whatever stands behind the socket: bad answers have names, none waits for ever, none fills the memory."""

from __future__ import annotations

import ssl
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio
import trio.testing

from fedsched.drivers.docker import engine as engine_module
from fedsched.drivers.docker.config import settings_from
from fedsched.drivers.docker.engine import Engine, encoded_auth
from fedsched.drivers.docker.faults import EngineFault, EngineRefused, Fault
from fedsched.drivers.docker.records import EngineVersion, RegistryAuth
from fedsched.drivers.docker.transport import BODY_BYTES_MAX, Endpoint, Transport, error_words
from tests.drivers.fake_engine import FakeEngine, MemoryEndpoint, Request, served
from tests.server.certificates import NEEDS_OPENSSL, an_authority

T = TypeVar("T")
OK = b"HTTP/1.1 200 OK\r\n"


def against(place: Path, answer: bytes, ask: Callable[[Engine], Awaitable[T]], *, closes: bool = True) -> T:
    """Ask an engine that answers every request with these bytes."""

    async def handle(stream: trio.SocketStream) -> None:
        await stream.receive_some()
        await stream.send_all(answer)
        if not closes:
            await stream.receive_some()

    async def main() -> T:
        async with served(place, handle) as endpoint:
            with trio.fail_after(20):
                return await ask(Engine(Transport(endpoint)))

    return trio.run(main)


def version_fault(place: Path, answer: bytes) -> EngineFault:
    async def ask(engine: Engine) -> EngineFault:
        with pytest.raises(EngineFault) as caught:
            await engine.version()
        return caught.value

    return against(place, answer, ask)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"", Fault.CUT),
        (b"SSH-2.0-OpenSSH_9.2\r\n\r\n", Fault.GARBLED),
        (b"\x00\xff\x13garbage\r\n\r\n", Fault.GARBLED),
        (b"HTTP/1.1 200 OK\r\nContent-Length: ten\r\n\r\n", Fault.GARBLED),
        (b"HTTP/1.1 200 OK\r\nno colon here\r\n\r\n", Fault.GARBLED),
        (OK + b"Content-Length: 100\r\n\r\n{}", Fault.CUT),
        (OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n", Fault.GARBLED),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab", Fault.CUT),
        (OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}XX", Fault.GARBLED),
        (OK + b"Transfer-Encoding: gzip\r\n\r\n", Fault.GARBLED),
        (OK + b"X: " + b"y" * 100_000, Fault.GARBLED),
        (OK + b"Content-Length: 4\r\n\r\nnope", Fault.GARBLED),
        (OK + b"Content-Length: 2\r\n\r\n[]", Fault.GARBLED),
        (OK + b'Content-Length: 18\r\n\r\n{"ApiVersion": 12}', Fault.GARBLED),
        (OK + b'Content-Length: 20\r\n\r\n{"ApiVersion":"new"}', Fault.GARBLED),
        (OK + b"Content-Length: 2\r\n\r\n\xff\xfe", Fault.GARBLED),
    ],
)
def test_answers_that_are_none_have_names(tmp_path: Path, answer: bytes, kind: Fault) -> None:
    fault = version_fault(tmp_path, answer)

    assert fault.kind is kind, fault
    assert fault.is_recoverable


def test_an_answer_without_length_ends_with_its_connection(tmp_path: Path) -> None:
    found = against(tmp_path, OK + b'\r\n{"Version":"1","ApiVersion":"1.41"}', lambda engine: engine.version())

    assert found == EngineVersion(version="1", api_version="1.41")


def test_a_huge_answer_is_refused(tmp_path: Path) -> None:
    body = b"[" + b"1," * (BODY_BYTES_MAX // 2 + 10) + b"1]"

    fault = version_fault(tmp_path, OK + b"Content-Length: %d\r\n\r\n" % len(body) + body)

    assert fault.kind is Fault.TOO_LARGE


def test_early_words_of_the_engine_are_passed_over(tmp_path: Path) -> None:
    answer = b"HTTP/1.1 102 Processing\r\n\r\n" + OK + b"Content-Length: 21\r\n\r\n" + b'{"ApiVersion":"1.30"}'
    assert against(tmp_path, answer, lambda engine: engine.version()).api_version == "1.30"


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"message":"no such thing"}', "no such thing"),
        (b"plain words\n", "plain words"),
        (b"", "no reason given"),
        (b"[]", "[]"),
        (b'{"message":7}', '{"message":7}'),
        (b"\xff" * 1000, "�" * 300),
    ],
)
def test_a_refusal_says_why_in_the_engines_words(body: bytes, words: str) -> None:
    assert error_words(body) == words


def test_a_refusal_with_an_endless_reason_is_cut_short(tmp_path: Path) -> None:
    async def ask(engine: Engine) -> EngineRefused:
        with pytest.raises(EngineRefused) as caught:
            await engine.version()
        return caught.value

    refusal = against(tmp_path, b"HTTP/1.1 500 No\r\n\r\n" + b"x" * 100_000, ask)

    assert refusal.status == 500
    assert refusal.is_recoverable
    assert len(refusal.reason) == 300


def test_nobody_there_is_unreachable_and_says_where(tmp_path: Path) -> None:
    async def main() -> None:
        with pytest.raises(EngineFault, match=r"nothing\.sock") as caught:
            await Engine(Transport(Endpoint(f"unix://{tmp_path}/nothing.sock"))).version()
        assert caught.value.kind is Fault.UNREACHABLE
        assert caught.value.hint

    trio.run(main)


def test_an_engine_that_hangs_is_given_up_in_time() -> None:
    async def hang(request: Request) -> None:
        await trio.sleep_forever()

    async def main() -> None:
        fake = FakeEngine()
        fake.script("GET /info", hang)
        async with trio.open_nursery() as nursery:
            engine = Engine(Transport(MemoryEndpoint(fake, nursery)))
            await engine.version()
            began = trio.current_time()
            with pytest.raises(EngineFault, match="30 s") as caught:
                await engine.info()
            assert caught.value.kind is Fault.TIMEOUT
            assert trio.current_time() - began == pytest.approx(engine_module.ANSWER_S)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_an_engine_that_trickles_is_given_up_in_time_too() -> None:
    async def trickle(request: Request) -> None:
        await request.stream.send_all(OK + b"Content-Length: 100000\r\n\r\n")
        while True:
            await request.stream.send_all(b" ")
            await trio.sleep(1)

    async def main() -> None:
        fake = FakeEngine()
        fake.script("GET /version", trickle)
        async with trio.open_nursery() as nursery:
            with pytest.raises(EngineFault) as caught:
                await Engine(Transport(MemoryEndpoint(fake, nursery))).version()
            assert caught.value.kind is Fault.TIMEOUT
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.mark.parametrize(
    ("newest", "oldest", "spoken"),
    [("1.41", "1.24", "1.41"), ("1.60", "1.24", "1.47"), ("1.60", "1.50", "1.50"), ("2.0", "1.0", "1.47")],
)
def test_the_newest_version_that_both_know_is_spoken(newest: str, oldest: str, spoken: str) -> None:
    targets: list[str] = []

    async def main() -> None:
        fake = FakeEngine()
        fake.version |= {"ApiVersion": newest, "MinAPIVersion": oldest}
        async with trio.open_nursery() as nursery:
            transport = Transport(MemoryEndpoint(fake, nursery))
            plain = transport.open_answer

            def noted(method: str, target: str, **more: Any) -> Any:
                targets.append(target)
                return plain(method, target, **more)

            transport.open_answer = noted  # type: ignore[method-assign]
            await Engine(transport).info()
            nursery.cancel_scope.cancel()

    trio.run(main)
    assert targets == ["/version", f"/v{spoken}/info"]


def test_names_cannot_become_other_calls() -> None:
    async def main() -> list[str]:
        fake = FakeEngine()
        async with trio.open_nursery() as nursery:
            engine = Engine(Transport(MemoryEndpoint(fake, nursery)))
            with pytest.raises(EngineRefused):
                await engine.inspect("../images/app?x=\r\nEvil: yes")
            nursery.cancel_scope.cancel()
        return fake.calls

    assert trio.run(main)[-1].startswith("GET /containers/../images/app")


def test_an_id_that_is_none_is_not_believed() -> None:
    async def main() -> None:
        fake = FakeEngine()
        fake.script_reply("POST /containers/create", 201, {"Id": "../../etc"})
        fake.script_reply("POST /containers/.*/exec", 201, {})
        async with trio.open_nursery() as nursery:
            engine = Engine(Transport(MemoryEndpoint(fake, nursery)))
            with pytest.raises(EngineFault, match="proper id"):
                await engine.create("web", {})
            with pytest.raises(EngineFault, match="proper id"):
                await engine.create_exec("c", {})
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_credentials_are_not_part_of_any_text() -> None:
    auth = RegistryAuth(username="me", password="hunter2", identitytoken="t0ken")

    assert "hunter2" not in repr(auth)
    assert "t0ken" not in repr(auth)
    assert "hunter2" not in encoded_auth(auth)


@NEEDS_OPENSSL
def test_an_engine_behind_tls_is_asked_by_those_it_knows(tmp_path: Path) -> None:
    authority, other = an_authority(tmp_path / "ours"), an_authority(tmp_path / "theirs")
    served_by, known = authority.server(), authority.certificate("agent", "DNS:agent")
    stranger = other.certificate("stranger", "DNS:stranger")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=served_by.ca_file)
    context.load_cert_chain(served_by.cert_file, served_by.key_file)
    context.verify_mode = ssl.CERT_REQUIRED

    async def main() -> None:
        fake = FakeEngine()

        async def serve(stream: trio.SocketStream) -> None:
            try:
                await fake.serve(trio.SSLStream(stream, context, server_side=True, https_compatible=True))
            except ssl.SSLError:
                await trio.aclose_forcefully(stream)

        def engine_with(cert: str, key: str, ca: str) -> Engine:
            tls = {"cert": cert, "key": key, "ca": ca}
            return Engine(Transport(settings_from({"endpoint": endpoint, "tls": tls}).open_endpoint()))

        async with trio.open_nursery() as nursery:
            (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1")
            endpoint = f"tcp://127.0.0.1:{listener.socket.getsockname()[1]}"
            nursery.start_soon(trio.serve_listeners, serve, [listener])
            with trio.fail_after(20):
                trusted = engine_with(known.cert_file, known.key_file, known.ca_file)
                assert (await trusted.version()).version == "27.1.0"
                for ca in (served_by.ca_file, stranger.ca_file):
                    with pytest.raises(EngineFault):
                        await engine_with(stranger.cert_file, stranger.key_file, ca).version()
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_input_cannot_be_ended_over_tls() -> None:
    context = ssl.create_default_context()

    async def main() -> None:
        fake = FakeEngine()

        async def upgrade(request: Request) -> None:
            await request.stream.send_all(b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\nleft")
            await trio.sleep_forever()

        fake.script("POST /exec/e/start", upgrade)
        async with trio.open_nursery() as nursery:
            engine = Engine(Transport(MemoryEndpoint(fake, nursery)))
            async with engine.start_exec("e", is_tty=True) as answer:
                assert await answer.receive_some() == b"left"
                answer._stream = trio.SSLStream(trio.testing.memory_stream_pair()[0], context)
                with pytest.raises(EngineFault, match="TLS"):
                    await answer.send_eof()
            nursery.cancel_scope.cancel()

    trio.run(main)

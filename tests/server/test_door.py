"""The server port: whoever sends what it should not is closed and counted, and nobody else notices."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest
import trio

from fedsched.codec import cbor
from fedsched.model.errors import BadRequest, Unavailable
from fedsched.raft.membership import ServerInfo
from fedsched.server import peers
from fedsched.server.dialling import Dialer
from fedsched.server.door import OPEN, REFUSED
from fedsched.server.peers import PeerLinks
from fedsched.server.tls import TlsFiles, load_contexts
from fedsched.telemetry.log import Hub
from fedsched.wire.frames import Hello, encode
from fedsched.wire.limits import VERSION
from fedsched.wire.offenders import OFFENCES
from fedsched.wire.stream import Preamble, StreamCarrier
from tests.server.certificates import NEEDS_OPENSSL, an_authority
from tests.server.region import Member, Region, run_region, until


async def knock(member: Member) -> trio.SocketStream:
    host, _, port = member.address.rpartition(":")
    return await trio.open_tcp_stream(host, int(port))


async def wait_closed(stream: trio.SocketStream, saying: bytes = b"") -> None:
    """Say something, and return when the other side has closed the connection."""
    async with stream:
        try:
            if saying:
                await stream.send_all(saying)
                await stream.send_eof()
            while await stream.receive_some():
                pass
        except trio.BrokenResourceError:
            pass


def refused(member: Member) -> float:
    return member.metrics.counter(REFUSED).value


def open_now(member: Member) -> float:
    return member.metrics.gauge(OPEN).value


@pytest.mark.parametrize(
    "garbage",
    [
        b"POST / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00" * 64,
        Preamble.CALLS.value + b"\xff" * 64,
        Preamble.RAFT.value + b"\xff" * 64,
        Preamble.RAFT.value + b"\x00\x00\x00\x01\xf6",
        Preamble.RAFT.value + b"\x00\x00\x00\x09\x01",
    ],
    ids=[
        "post",
        "websocket elsewhere",
        "no websocket",
        "zeros",
        "frame too long",
        "packet too long",
        "no hello",
        "half a hello",
    ],
)
def test_bytes_that_are_none_of_ours_end_their_connection_and_are_counted(tmp_path: Path, garbage: bytes) -> None:
    async def scenario(region: Region) -> None:
        lone = await region.form(1)
        before = refused(lone)

        await wait_closed(await knock(lone), garbage)

        await until("it is counted", lambda: refused(lone) == before + 1)
        assert (await lone.register("web")).index

    run_region(tmp_path, scenario)


def offences(member: Member) -> dict[str, float]:
    """Counts on the server port, by peer."""
    return {labels[1]: one.value for labels, one in member.metrics.counters(OFFENCES).series.items()}


def test_whoever_sends_garbage_is_named_by_its_address_and_counted(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        lone = await region.form(1)
        stream = await knock(lone)
        own = "{}:{}".format(*stream.socket.getsockname())

        await wait_closed(stream, b"POST / HTTP/1.1\r\n\r\n")
        await until("it is counted", lambda: offences(lone) == {"127.0.0.1": 1})
        for _ in range(3):
            await wait_closed(await knock(lone), b"junk")
        await until("all are counted", lambda: offences(lone) == {"127.0.0.1": 4})

        told = lone.said("peer_refused")
        assert (told[0]["peer"], told[0]["server"], told[0]["offences"]) == (own, "", 1)
        assert "b'POST'" in told[0]["why"]
        assert [one["offences"] for one in told] == [1, 2, 3, 4]

    run_region(tmp_path, scenario)


async def greet(member: Member, payload: bytes) -> trio.SocketStream:
    """Open a link for calls by hand, as whoever the payload says."""
    stream = await knock(member)
    carrier = StreamCarrier(stream, "us")
    await stream.send_all(Preamble.CALLS.value)
    await carrier.send([encode(Hello(VERSION, VERSION, 1 << 20, 16, payload))])
    await carrier.receive(1 << 20)
    return stream


def test_a_server_that_breaks_the_rules_of_a_link_is_called_by_its_name(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        await region.form(2)
        leader, (culprit,) = await region.leader(), await region.followers()

        stream = await greet(leader, cbor.dumps({"server": culprit.id}))
        await wait_closed(stream, b"\x00\x00\x00\x04\x00\x02\xff\xff")

        await until("it is counted", lambda: offences(leader) == {culprit.name: 1})
        (told,) = leader.said("peer_refused")
        assert (told["server"], told["port"]) == (culprit.name, "rpc")
        assert told["peer"].startswith("127.0.0.1:")
        assert "frame header" in told["why"]

    run_region(tmp_path, scenario)


@pytest.mark.parametrize("payload", [b"", b"\xff", cbor.dumps(5), cbor.dumps({"server": "nobody"}), cbor.dumps({})])
def test_a_name_that_the_region_does_not_know_is_not_believed(tmp_path: Path, payload: bytes) -> None:
    async def scenario(region: Region) -> None:
        lone = await region.form(1)

        stream = await greet(lone, payload)
        await wait_closed(stream, b"\xff" * 64)

        await until("it is counted", lambda: offences(lone) == {"127.0.0.1": 1})

    run_region(tmp_path, scenario)


def test_bad_raft_packets_are_put_down_to_the_only_server_at_that_address(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        lone = await region.form(1)
        await wait_closed(await knock(lone), Preamble.RAFT.value + b"\xff" * 64)
        await until("it is counted", lambda: offences(lone) == {"s1": 1})

        await region.add("s2")  # now there are two servers at 127.0.0.1
        await until("s2 is in", lambda: len(lone.server.raft.core.config.servers) == 2)
        await wait_closed(await knock(lone), Preamble.RAFT.value + b"\xff" * 64)

        await until("it is counted", lambda: offences(lone) == {"s1": 1, "127.0.0.1": 1})

    run_region(tmp_path, scenario)


def test_whoever_says_nothing_is_closed_when_its_time_is_up(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        lone = await region.form(1)
        before = refused(lone)
        silent, hesitant = await knock(lone), await knock(lone)
        await hesitant.send_all(Preamble.CALLS.value[:2])

        await wait_closed(silent)
        await wait_closed(hesitant)

        await until("both are counted", lambda: refused(lone) == before + 2)

    run_region(tmp_path, scenario, handshake_s=0.1)


def test_one_connection_more_than_the_limit_is_closed_at_once_and_those_inside_go_on(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        lone = await region.form(1)
        inside = [await knock(lone) for _ in range(3)]
        await until("they are inside", lambda: open_now(lone) == 3)

        await wait_closed(await knock(lone))

        assert refused(lone) == 1
        assert "too many connections: 3" in lone.said("peer_refused")[0]["why"]
        await inside[0].send_all(Preamble.CALLS.value)
        assert open_now(lone) == 3
        for stream in inside:
            await stream.aclose()
        await until("there is room again", lambda: open_now(lone) == 0)

    run_region(tmp_path, scenario, connections_max=3)


def test_a_connection_that_is_gone_before_it_is_served_harms_nobody(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        lone = await region.form(1)
        for _ in range(5):
            await trio.aclose_forcefully(await knock(lone))

        await until("all are gone", lambda: open_now(lone) == 0)
        assert (await lone.register("web")).index

    run_region(tmp_path, scenario)


def test_a_server_that_does_not_greet_is_treated_as_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "DIAL_S", 0.05)

    async def main() -> None:
        links = PeerLinks(Dialer(), server_id="me", log=Hub().logger("test"))
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        address = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        with pytest.raises(Unavailable, match="this server is not running"):
            await links.caller_at(address)
        async with trio.open_nursery() as nursery:
            await nursery.start(links.run)

            with pytest.raises(Unavailable, match=rf"{address} did not answer within 0\.05 s"):
                await links.caller_at(address)
            nursery.start_soon(trio.serve_listeners, trio.aclose_forcefully, listeners)
            with pytest.raises(Unavailable, match="peer"):
                await links.caller(ServerInfo("id", "peer", address))
            with pytest.raises(Unavailable, match=r"cannot reach 127\.0\.0\.1:1:"):
                await links.caller_at("127.0.0.1:1")
            nursery.cancel_scope.cancel()

    trio.run(main)


def test_an_override_leads_to_a_server_by_another_way(tmp_path: Path) -> None:
    async def scenario(region: Region) -> None:
        lone = await region.form(1)
        dialer = Dialer(overrides={"s1": lone.address})

        stream = await dialer.open(ServerInfo(lone.id, "s1", "127.0.0.1:1"), Preamble.CALLS)

        await until("it is inside", lambda: open_now(lone) == 1)
        await stream.aclose()

    run_region(tmp_path, scenario)


# ------------------------------------------------------------------------------------------------------------------ TLS


@NEEDS_OPENSSL
def test_servers_with_certificates_of_one_authority_form_a_region(tmp_path: Path) -> None:
    tls = load_contexts(an_authority(tmp_path / "ca").server(), "eu")

    async def scenario(region: Region) -> None:
        await region.form(3)
        follower = (await region.followers())[0]

        await follower.register("web")

        for member in region.running():
            assert (await member.job("web")).id == "web"
        before = refused(follower)
        await wait_closed(await knock(follower), Preamble.CALLS.value + b"\x00" * 16)
        await until("plain text is counted", lambda: refused(follower) == before + 1)

    run_region(tmp_path / "data", scenario, tls=tls)


@NEEDS_OPENSSL
def test_certificates_of_another_authority_region_or_role_open_nothing(tmp_path: Path) -> None:
    ours = an_authority(tmp_path / "ca")
    tls = load_contexts(ours.server(), "eu")
    foreign = load_contexts(an_authority(tmp_path / "other").server(), "eu")
    client = load_contexts(ours.certificate("client", "DNS:client.eu.fedsched"), "eu")

    async def scenario(region: Region) -> None:
        lone = await region.form(1)
        before = refused(lone)

        with pytest.raises(Unavailable, match="broke the connection off"):  # it does not trust us, nor we it
            await Dialer(foreign).open_address(lone.address, Preamble.CALLS)
        await until("it is counted", lambda: refused(lone) == before + 1)
        no_server = load_contexts(ours.server("us"), "us")
        with pytest.raises(Unavailable, match=r"broke the connection off.*server\.us\.fedsched"):
            await Dialer(no_server).open_address(lone.address, Preamble.CALLS)
        stream = await Dialer(client).open_address(lone.address, Preamble.CALLS)  # may call, but cannot be a server
        await stream.aclose()

    run_region(tmp_path / "data", scenario, tls=tls)


@NEEDS_OPENSSL
def test_the_file_that_does_not_fit_is_named(tmp_path: Path) -> None:
    files = an_authority(tmp_path).server()
    other = an_authority(tmp_path / "other").server()

    with pytest.raises(BadRequest, match=r"tls\.ca_file '/nowhere'"):
        load_contexts(TlsFiles("/nowhere", files.cert_file, files.key_file), "eu")
    with pytest.raises(BadRequest, match=r"tls\.cert_file .* with tls\.key_file") as wrong:
        load_contexts(TlsFiles(files.ca_file, files.cert_file, other.key_file), "eu")

    assert "key must belong to the certificate" in wrong.value.hint
    relaxed = load_contexts(files, "eu", verify_server_name=False)
    assert (relaxed.dialling.check_hostname, relaxed.dialling.verify_mode) == (False, ssl.CERT_REQUIRED)

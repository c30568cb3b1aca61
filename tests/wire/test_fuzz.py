"""Random and mutated bytes into everything that reads from outside; the kept inputs are replayed first."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
import trio

from fedsched.codec import CodecError, loads
from fedsched.wire.address import Address
from fedsched.wire.link import open_link
from fedsched.wire.websocket import connect_websocket
from tests.wire.fuzz_targets import TARGETS, Mutator, corpus
from tests.wire.test_websocket import UPGRADE, Host, with_host

ROUNDS = {"stream": 150, "rpc": 150, "link_core": 1500}
KEPT = [(target, path) for target in TARGETS for path in corpus(target)]
HOSTILE_CONNECTIONS = 60


@pytest.mark.parametrize(("target", "path"), KEPT, ids=[f"{target}-{path.name}" for target, path in KEPT])
def test_a_kept_input_does_no_harm(target: str, path: Path) -> None:
    TARGETS[target](path.read_bytes())


@pytest.mark.parametrize("target", TARGETS)
def test_random_and_mutated_bytes_do_no_harm(target: str) -> None:
    mutator = Mutator([path.read_bytes() for path in corpus(target)], seed=1)
    for _ in range(ROUNDS.get(target, 4000)):
        data = mutator.next()
        try:
            TARGETS[target](data)
        except BaseException as error:
            pytest.fail(f"{target} broke on {data.hex()}: {error!r}; keep it in fixtures/crashers/{target}/")


def test_every_target_has_kept_inputs() -> None:
    assert {target for target, _ in KEPT} == set(TARGETS)
    assert len(corpus("websocket")) > 10


def test_the_rig_finds_a_planted_bug() -> None:
    """A decoder that breaks on one pair of bytes in the middle must be caught, or this file means little."""
    mutator = Mutator([path.read_bytes() for path in corpus("codec")], seed=2)

    assert any(b"\xd8\x1c" in mutator.next()[1:] for _ in range(4000))


@pytest.mark.parametrize(
    "unit",
    [b"\x80", b"\xa0", b"\x81\x00", b"\xa1\x60\x00", b"\x60", b"\x40", b"\xf9\x3c\x00", b"\x1b" + b"\xff" * 8],
    ids=["lists", "maps", "lists of one", "maps of one", "texts", "byte strings", "floats", "numbers"],
)
def test_decoding_costs_at_most_eighty_times_the_input(unit: bytes) -> None:
    count = 130_000
    data = b"\x9a" + count.to_bytes(4, "big") + unit * count
    tracemalloc.start()
    try:
        kept = loads(data)
    except CodecError:
        kept = None
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 80 * len(data)
    del kept


def test_hostile_websockets_are_closed_and_an_honest_one_beside_them_is_served() -> None:
    host = Host()
    kept = [path.read_bytes() for path in corpus("websocket")]
    mutator = Mutator(kept, seed=3)
    inputs = [UPGRADE % b"" + data for data in kept]
    inputs += [UPGRADE % b"" + mutator.next() for _ in range(HOSTILE_CONNECTIONS)]
    handshakes = Mutator([UPGRADE % b""], seed=4)
    inputs += [handshakes.next() for _ in range(HOSTILE_CONNECTIONS)]

    async def attack(address: Address, data: bytes) -> None:
        stream = await trio.open_tcp_stream(address.host, address.port)
        async with stream:
            try:
                await stream.send_all(data)
                await stream.send_eof()
                with trio.move_on_after(8):
                    while await stream.receive_some(65536):
                        pass
            except trio.BrokenResourceError:
                pass  # cut off before it was done: just as well

    async def body(nursery: trio.Nursery, address: Address) -> None:
        carrier = await connect_websocket(nursery, address)
        async with open_link(carrier, is_opener=True) as honest:
            await honest.wait_ready()
            for start in range(0, len(inputs), 20):
                async with trio.open_nursery() as attackers:
                    for data in inputs[start : start + 20]:
                        attackers.start_soon(attack, address, data)
                    for _ in range(20):
                        with trio.fail_after(5):
                            assert await honest.call("Echo", b"still served") == b"still served"

    tracemalloc.start()
    with_host(host, body)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert len(host.refused) + len(host.closed) >= len(inputs) - 1
    assert peak < 64 * 1024 * 1024

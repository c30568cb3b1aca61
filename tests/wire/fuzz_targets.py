"""What hostile bytes are thrown at, and what must hold whatever they are.

Each target takes bytes and raises only if a promise is broken. `fixtures/crashers/<target>/` keeps inputs that once
did, or that are known to hurt decoders; they are replayed with every run, and mutated.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import trio
import trio.testing

from fedsched.codec import CodecError, TaggedUnion, dumps, from_bytes, loads
from fedsched.model.errors import FedschedError
from fedsched.rpc.methods.job import JobRegisterRequest, JobRequest
from fedsched.rpc.server_side import CallServer
from fedsched.wire import frames
from fedsched.wire.carrier import CarrierClosed
from fedsched.wire.effects import Greeted, Serve
from fedsched.wire.errors import ProtocolViolation
from fedsched.wire.frames import FrameError
from fedsched.wire.limits import LinkLimits
from fedsched.wire.link import Link
from fedsched.wire.link_calls import ServedCall
from fedsched.wire.link_core import LinkCore
from fedsched.wire.packing import unpack
from fedsched.wire.stream import StreamCarrier, read_preamble
from tests.wire.builders import GOOD_HELLO, message

CORPUS = Path(__file__).parents[2] / "fixtures" / "crashers"
LIMITS = LinkLimits(outbox_bytes_max=100_000, frame_bytes_max=270_000, calls_max=8, served_bytes_max=50_000)


def codec(data: bytes) -> None:
    try:
        value = loads(data)
    except CodecError:
        return
    again = dumps(value)
    assert dumps(loads(again)) == again


def records(data: bytes) -> None:
    union: TaggedUnion[JobRegisterRequest | JobRequest] = TaggedUnion({"a": JobRegisterRequest, "b": JobRequest})
    with suppress(CodecError):
        from_bytes(data, JobRegisterRequest)
    with suppress(CodecError):
        union.from_bytes(data)


def frame(data: bytes) -> None:
    try:
        found = frames.decode(data)
    except FrameError:
        return
    assert frames.decode(b"".join(frames.encode(found))) == found


def packing(data: bytes) -> None:
    with suppress(ProtocolViolation):
        found, size = unpack(data, 1000)
        assert size == sum(len(piece) + 4 for piece in found) <= len(data)


def link_core(data: bytes) -> None:
    """Messages behind their lengths, into a core that has been greeted if the first byte is odd."""
    core = LinkCore(is_opener=False, now=0.0, limits=LIMITS)
    if data[:1] and data[0] & 1:
        core.receive(message(GOOD_HELLO), 0.0)
        core.admit()
    core.call("Ours", b"", deadline=9.0, now=0.0)
    found, size = unpack(data[1:], 1 << 32)
    for number, piece in enumerate([*found, data[1 + size :]]):
        for effect in core.receive(piece, number * 0.01):
            if isinstance(effect, Greeted):
                core.admit()
            elif isinstance(effect, Serve) and effect.call.id % 3 == 0:
                core.reply(effect.call, b"done")
        assert core.serving <= LIMITS.calls_max
        assert core.served_bytes <= LIMITS.served_bytes_max
        assert core.outbox_bytes < 700_000
    core.lost("end")
    assert (core.serving, core.calling, core.served_bytes) == (0, 0, 0)


async def _echo(call: ServedCall) -> bytes:
    return call.payload


def stream(data: bytes) -> None:
    """Raw bytes on a server port: preamble, lengths and frames. The link must end, and say why."""

    async def main() -> None:
        near, far = trio.testing.memory_stream_pair()
        await near.send_all(data)
        await near.aclose()
        with suppress(ProtocolViolation, CarrierClosed):
            await read_preamble(far)
        carrier = StreamCarrier(far, "fuzz")
        closed = await Link(carrier, is_opener=False, handler=_echo, limits=LIMITS).run()
        assert closed.message

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def rpc(data: bytes) -> None:
    """A call's payload, and the method's name in front of it, into a call server: only refusals come out."""
    name, _, payload = data.partition(b"\n")

    async def never(request: object, context: object) -> None:
        raise AssertionError("no random bytes are a whole request")

    async def main() -> None:
        core = LinkCore(is_opener=False, now=0.0)
        core.receive(message(GOOD_HELLO), 0.0)
        core.admit()
        effects = core.receive(message(frames.Call(1, name.decode("latin-1")[:100], 0, 0, 0, payload)), 0.0)
        if effects and isinstance(effects[0], Serve):
            with suppress(FedschedError):
                await CallServer({})(_ServedAlone(effects[0]))

    trio.run(main)


class _ServedAlone(ServedCall):
    """A served call without a link around it."""

    def __init__(self, serve: Serve) -> None:
        super().__init__(_NoLink(), serve.call, serve.payload)  # type: ignore[arg-type]


class _NoLink:
    peer = "fuzz"
    identity = None


TARGETS: dict[str, Callable[[bytes], None]] = {
    "codec": codec,
    "records": records,
    "frames": frame,
    "packing": packing,
    "link_core": link_core,
    "stream": stream,
    "rpc": rpc,
}


def corpus(target: str) -> list[Path]:
    """The kept inputs of a target, in a fixed order."""
    return sorted((CORPUS / target).glob("*"))


class Mutator:
    """Makes inputs: random bytes, and kept or well-formed ones with something broken. The same for the same seed."""

    def __init__(self, seeds: list[bytes], seed: int) -> None:
        self._seeds = [*seeds, b""]
        self._random = random.Random(seed)

    def next(self) -> bytes:
        chance = self._random
        if chance.random() < 0.15:
            return chance.randbytes(chance.randrange(200))
        data = bytearray(chance.choice(self._seeds))
        for _ in range(chance.randrange(1, 6)):
            self._break(data)
        return bytes(data)

    def _break(self, data: bytearray) -> None:
        chance = self._random
        at = chance.randrange(len(data) + 1)
        match chance.randrange(6):
            case 0 if data:
                data[at % len(data)] = chance.randrange(256)
            case 1 if data:
                data[at % len(data)] ^= 1 << chance.randrange(8)
            case 2:
                data[at:at] = chance.randbytes(chance.randrange(1, 9))
            case 3:
                del data[at : at + chance.randrange(1, 9)]
            case 4:
                other = chance.choice(self._seeds)
                data[at:] = other[chance.randrange(len(other) + 1) :]
            case _:
                heads = (
                    b"\x9a\xff\xff\xff\xff",
                    b"\xbb" + b"\xff" * 8,
                    b"\xd8\x1c\x81\xd8\x1d\x00",
                    b"\x81" * 40,
                    b"\x9f",
                )
                data[at:at] = chance.choice(heads)

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsched.codec import STORED_LIMITS, dumps, loads
from fedsched.state.apply import apply_bytes
from fedsched.state.image import CHUNK_BYTES_MAX, DamagedImage, NewerImage, Restorer, save
from fedsched.state.store import SCHEMA_VERSION, Store
from fedsched.state.tables.jobs import JobRegister
from fedsched.state.tables.nodes import NodeUpsert
from tests.builders import a_job
from tests.state.golden import GOLDEN, GOLDEN_LOG, OLD_IMAGES, a_golden_world
from tests.state.worlds import World, dump, problems

HEAD = struct.Struct(">II")


def image_of(store: Store) -> bytes:
    return b"".join(save(store.snapshot()))


def restore(data: bytes, *, step: int = 10_000) -> Store:
    restorer = Restorer()
    for at in range(0, len(data), step):
        restorer.feed(data[at : at + step])
    return restorer.finish()


def frames(data: bytes) -> Iterator[dict[str, Any]]:
    at = 0
    while at < len(data):
        length, _ = HEAD.unpack_from(data, at)
        yield loads(data[at + HEAD.size : at + HEAD.size + length], STORED_LIMITS)
        at += HEAD.size + length


def rebuilt(data: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    """The same image with every frame changed by `change`, checksums and digest made good again."""
    from hashlib import blake2b

    whole = blake2b(digest_size=32)
    out = b""
    for value in frames(data):
        if value["k"] == "end":
            value["digest"] = whole.digest()
        else:
            change(value)
        payload = dumps(value)
        frame = HEAD.pack(len(payload), crc32(payload)) + payload
        whole.update(frame)
        out += frame
    return out


def golden_log(path: Path = GOLDEN_LOG) -> list[bytes]:
    data = path.read_bytes()
    entries = []
    while data:
        length = int.from_bytes(data[:4], "big")
        entries.append(data[4 : 4 + length])
        data = data[4 + length :]
    return entries


def replayed_golden(path: Path = GOLDEN_LOG) -> Store:
    replayed = Store()
    for at, entry in enumerate(golden_log(path)):
        apply_bytes(replayed, at + 1, entry)
    return replayed


@pytest.mark.parametrize("schema", [*OLD_IMAGES, SCHEMA_VERSION])
def test_the_golden_image_of_each_schema_restores_to_what_its_log_makes(schema: int) -> None:
    image, log = OLD_IMAGES.get(schema, (GOLDEN, GOLDEN_LOG))
    restored, replayed = restore(image.read_bytes()), replayed_golden(log)

    assert restored.digest() == replayed.digest()
    assert dump(restored) == dump(replayed)
    assert problems(restored) == []
    job = restored.jobs.get("default", "web")
    assert job is not None
    assert (job.version, job.priority) == (1, 70)


def test_the_golden_image_is_still_what_this_version_writes() -> None:
    """If this fails: a new schema needs a new golden image beside the old one, and this test points to the newest."""
    assert SCHEMA_VERSION == 5
    assert GOLDEN.read_bytes() == image_of(replayed_golden())


def test_it_does_not_matter_how_the_bytes_are_cut() -> None:
    data = image_of(a_golden_world().store)

    assert restore(data, step=1).digest() == restore(data, step=len(data)).digest() == a_golden_world().store.digest()


def test_no_chunk_is_too_large_even_if_a_row_is() -> None:
    world = World()
    for number in range(3):
        world.do(JobRegister(namespace="default", id=f"job-{number}", spec=bytes(600_000)))
    chunks = list(save(world.store.snapshot()))

    assert max(map(len, chunks)) == CHUNK_BYTES_MAX
    assert restore(b"".join(chunks)).digest() == world.store.digest()


def test_a_large_store_is_saved_in_many_small_steps() -> None:
    world = World()
    for number in range(700):
        world.do(NodeUpsert(id=f"node-{number}"))
    world.register(a_job())
    world.place(list(range(1, 5_001)), [number % 700 for number in range(5_000)])
    chunks = list(save(world.store.snapshot()))

    kinds = [(value["k"], value.get("t")) for value in frames(b"".join(chunks))]
    assert kinds.count(("rows", "nodes")) == 6
    assert kinds.count(("columns", "allocations")) == 3
    assert restore(b"".join(chunks)).digest() == world.store.digest()


def test_an_image_saved_while_the_store_goes_on_is_that_of_its_moment() -> None:
    world = a_golden_world()
    digest = world.store.digest()
    chunks = save(world.store.snapshot())
    data = next(chunks)
    number = 100
    for chunk in chunks:
        data += chunk
        world.do(NodeUpsert(id=f"late-{number}"))
        world.register(a_job(f"late-{number}"))
        number += 1

    assert restore(data).digest() == digest


@given(st.data())
@settings(max_examples=200)
def test_a_flipped_bit_never_goes_unnoticed(data: st.DataObject) -> None:
    image = bytearray(GOLDEN.read_bytes())
    at = data.draw(st.integers(0, len(image) - 1))
    image[at] ^= 1 << data.draw(st.integers(0, 7))

    with pytest.raises((DamagedImage, NewerImage)):
        restore(bytes(image))


@given(st.integers(0, 1 << 20))
def test_an_image_that_is_cut_short_is_refused(length: int) -> None:
    image = GOLDEN.read_bytes()

    with pytest.raises(DamagedImage):
        restore(image[: length % len(image)])


def test_bytes_after_the_end_are_refused() -> None:
    image = GOLDEN.read_bytes()
    end = list(frames(image))[-1]
    payload = dumps(end)
    with pytest.raises(DamagedImage, match="after its end"):
        restore(image + HEAD.pack(len(payload), crc32(payload)) + payload)
    with pytest.raises(DamagedImage, match="cut short"):
        restore(image + b"x")


def test_a_newer_schema_is_refused_before_anything_is_built() -> None:
    def newer(value: dict[str, Any]) -> None:
        if value["k"] == "head":
            value["schema"] = SCHEMA_VERSION + 1

    restorer = Restorer()
    with pytest.raises(NewerImage, match=f"schema {SCHEMA_VERSION + 1}"):
        restorer.feed(rebuilt(GOLDEN.read_bytes(), newer))
    assert restorer._store.index == 0


def test_another_format_is_refused() -> None:
    def other(value: dict[str, Any]) -> None:
        if value["k"] == "head":
            value["format"] = 9

    with pytest.raises(NewerImage, match="format 9"):
        restore(rebuilt(GOLDEN.read_bytes(), other))


def _drop_a_row(value: dict[str, Any]) -> None:
    if value["k"] == "rows" and value["t"] == "nodes":
        value["r"] = value["r"][1:]


def _change_a_row(value: dict[str, Any]) -> None:
    if value["k"] == "rows" and value["t"] == "nodes":
        value["r"][0][value["f"].index("datacenter")] = "elsewhere"


def _change_a_column(value: dict[str, Any]) -> None:
    if value["k"] == "columns" and value["t"] == "allocations":
        rows = bytearray(value["b"])
        rows[-1] ^= 1
        value["b"] = bytes(rows)


def _change_cold_bytes(value: dict[str, Any]) -> None:
    if value["k"] == "cold":
        value["v"] = [b"\xa0" for _ in value["v"]]


def _lose_an_origin(value: dict[str, Any]) -> None:
    if value["k"] == "rows" and value["t"] == "alloc_origins":
        value["r"] = value["r"][:1]


def _unknown_kind(value: dict[str, Any]) -> None:
    if value["k"] == "cold":
        value["k"] = "warm"


def _unknown_table(value: dict[str, Any]) -> None:
    if value["k"] == "rows" and value["t"] == "nodes":
        value["t"] = "gnomes"


def _odd_layout(value: dict[str, Any]) -> None:
    if value["k"] == "head":
        value["layouts"]["allocations"][0][1] = "O"


def _not_a_head(value: dict[str, Any]) -> None:
    if value["k"] == "head":
        value["k"] = "rows"


@pytest.mark.parametrize(
    "change",
    [
        _drop_a_row,
        _change_a_row,
        _change_a_column,
        _change_cold_bytes,
        _lose_an_origin,
        _unknown_kind,
        _unknown_table,
        _odd_layout,
        _not_a_head,
    ],
)
def test_an_image_with_good_checksums_but_wrong_content_is_refused(change: Callable[[dict[str, Any]], None]) -> None:
    with pytest.raises((DamagedImage, NewerImage)):
        restore(rebuilt(GOLDEN.read_bytes(), change))


def test_rows_and_columns_of_other_versions_are_read_by_name() -> None:
    """An older image lacks fields that came later, a neighbour's may have some that we dropped: both are read."""

    def older(value: dict[str, Any]) -> None:
        if value["k"] == "head":
            layout = value["layouts"]["allocations"]
            layout.append(["forgotten", "<i8", []])
            layout[[name for name, _, _ in layout].index("spare")][0] = "renamed"
        elif value["k"] == "columns" and value["t"] == "allocations":
            rows = np.frombuffer(value["b"], dtype=np.uint8).reshape(-1, 96)
            wide = np.zeros((len(rows), 104), dtype=np.uint8)
            wide[:, :96] = rows
            value["b"] = wide.tobytes()
        elif value["k"] == "rows" and value["t"] == "nodes":
            at = value["f"].index("node_class")
            value["f"][at] = "forgotten"

    image, log = OLD_IMAGES[2]
    assert restore(rebuilt(image.read_bytes(), older)).digest() == replayed_golden(log).digest()


def test_a_frame_that_claims_to_be_huge_is_refused_at_once() -> None:
    with pytest.raises(DamagedImage, match="at most"):
        Restorer().feed(HEAD.pack(1 << 31, 0))

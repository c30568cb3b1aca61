"""Frames as they travel: put together from pieces, split into items, joined and understood at the other end."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsched.codec import CodecError, from_bytes, to_bytes_sparse
from fedsched.rpc import node_watch
from fedsched.rpc.methods.node_frames import WatchFrame, WatchOrigin
from fedsched.rpc.node_watch import (
    ITEM_BYTES,
    KNOWN_MAX,
    LAST,
    MORE,
    WATCH_DTYPE,
    FrameReader,
    WatchedAllocations,
    frame_items,
)
from fedsched.wire.limits import DATA_BYTES_MAX
from tests.builders import a_job, an_id
from tests.state.worlds import ids

BYTES = st.binary(max_size=60)
FIELDS = st.fixed_dictionaries(
    {"jobs": st.lists(BYTES, max_size=3), "origins": st.lists(BYTES, max_size=3)},
    optional={
        "is_whole": st.booleans(),
        **dict.fromkeys(("rows", "own", "own_sizes", "kin", "removed"), BYTES),
        **dict.fromkeys(("written", "pace_ms"), st.integers(0, 2**40)),
    },
)


def read(items: list[bytes]) -> list[WatchFrame]:
    reader = FrameReader()
    return [frame for item in items if (frame := reader.take(item)) is not None]


@given(st.integers(0, 2**50), FIELDS)
def test_a_frame_of_pieces_reads_like_an_encoded_one(index: int, fields: dict[str, Any]) -> None:
    wanted = WatchFrame(index=index, **{**fields, "jobs": tuple(fields["jobs"]), "origins": tuple(fields["origins"])})
    assert read(frame_items(index, **fields)) == [wanted]
    assert from_bytes(to_bytes_sparse(wanted), WatchFrame) == wanted


@settings(max_examples=20)
@given(st.integers(0, 3 * ITEM_BYTES))
def test_a_large_frame_is_split_into_items_that_fit_and_joined_again(size: int) -> None:
    job = bytes(size)
    items = frame_items(5, jobs=[job], origins=[], rows=b"r")
    assert all(len(item) <= DATA_BYTES_MAX for item in items)
    assert [item[:1] for item in items] == [MORE] * (len(items) - 1) + [LAST]
    assert read([*items, *frame_items(6, jobs=[], origins=[])]) == [
        WatchFrame(index=5, jobs=(job,), rows=b"r"),
        WatchFrame(index=6),
    ]


def test_a_frame_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_watch, "FRAME_BYTES_MAX", 100)
    reader = FrameReader()
    reader.take(MORE + bytes(60))
    with pytest.raises(CodecError, match="more than 100 bytes"):
        reader.take(MORE + bytes(60))


def test_an_item_that_is_no_frame_is_refused() -> None:
    with pytest.raises(CodecError):
        FrameReader().take(LAST + b"\xff")
    with pytest.raises(CodecError):
        FrameReader().take(b"")


def a_frame(number: int, *, job: int = 0, with_job: bool = True, with_origin: bool = True) -> WatchFrame:
    """One allocation of an origin of the same number."""
    rows = np.zeros(1, dtype=WATCH_DTYPE)
    rows["id"] = np.frombuffer(ids([number]), dtype=">u8")
    rows["origin"], rows["desired"], rows["client_status"] = number, 1, 1
    origin = WatchOrigin(ref=number, job_id=f"job{job}", job_create_index=1, group="group", eval_id=an_id(9))
    return WatchFrame(
        jobs=(to_bytes_sparse(a_job(f"job{job}", create_index=1)),) if with_job else (),
        origins=(to_bytes_sparse(origin),) if with_origin else (),
        rows=rows.tobytes(),
    )


def test_a_client_keeps_what_servers_take_for_known_and_no_more() -> None:
    seen = WatchedAllocations(an_id(1))
    for number in range(3 * KNOWN_MAX):
        seen.take(a_frame(number, job=number))
    assert (len(seen._origins), len(seen._jobs), len(seen.allocations)) == (KNOWN_MAX, KNOWN_MAX, 3 * KNOWN_MAX)
    last = 3 * KNOWN_MAX - 1
    (again,) = seen.take(a_frame(last, job=last, with_job=False, with_origin=False))
    assert again.job is not None
    assert again.job.id == f"job{last}"


def test_the_job_of_an_origin_that_is_known_stays_known() -> None:
    seen = WatchedAllocations(an_id(1))
    seen.take(a_frame(0, job=0))
    for number in range(1, KNOWN_MAX):
        seen.take(a_frame(number, job=number))
    seen.take(a_frame(1000, job=0, with_job=False))
    seen.take(a_frame(1001, job=1001))  # the servers' memory of job0 ends here, that of its last origin does not
    (alloc,) = seen.take(a_frame(1000, job=0, with_job=False, with_origin=False))
    assert alloc.job is not None
    assert alloc.job.id == "job0"

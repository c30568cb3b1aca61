"""Records and named unions of records survive the trip, grow, and refuse what does not fit."""

from __future__ import annotations

import enum

import msgspec
import pytest

from fedsched.codec import CodecError, Limits, TaggedUnion, dumps, from_bytes, to_bytes


class Mood(enum.Enum):
    GOOD = "good"
    BAD = "bad"


class Note(msgspec.Struct, frozen=True, kw_only=True, rename="pascal"):
    text: str
    raw: bytes = b""
    mood: Mood = Mood.GOOD
    counts: dict[int, float] = {}
    inner: list[Note] = []


class Ping(msgspec.Struct, frozen=True):
    number: int


UNION: TaggedUnion[Note | Ping] = TaggedUnion({"note": Note, "ping": Ping})


def test_a_record_survives_with_bytes_enums_and_number_keys() -> None:
    note = Note(text="ü", raw=b"\xff\x00", mood=Mood.BAD, counts={3: 1.5}, inner=[Note(text="in")])

    assert from_bytes(to_bytes(note), Note) == note


def test_missing_fields_get_defaults_and_unknown_ones_are_ignored() -> None:
    assert from_bytes(dumps({"Text": "old", "FromTheFuture": [1]}), Note) == Note(text="old")


def test_a_field_that_does_not_fit_is_named() -> None:
    with pytest.raises(CodecError, match=r"Note.*Inner\[0\]\.Text"):
        from_bytes(dumps({"Text": "x", "Inner": [{"Text": 1}]}), Note)


def test_what_cannot_travel_is_refused_when_written() -> None:
    with pytest.raises(CodecError, match="Ping"):
        to_bytes(Ping(number=object()))  # type: ignore[arg-type]
    with pytest.raises(CodecError, match="tagged"):
        to_bytes(Ping(number=2**80))


def test_limits_reach_the_decoder() -> None:
    with pytest.raises(CodecError, match="at most 3"):
        from_bytes(to_bytes(Ping(number=1)), Ping, Limits(bytes_max=3))


@pytest.mark.parametrize("record", [Note(text="a"), Ping(number=7)])
def test_a_union_brings_back_the_type_its_name_says(record: Note | Ping) -> None:
    assert UNION.from_bytes(UNION.to_bytes(record)) == record


def test_a_union_does_not_write_what_it_could_not_read_back() -> None:
    with pytest.raises(CodecError, match="number"):
        UNION.to_bytes(Ping(number="seven"))  # type: ignore[arg-type]


def test_a_union_refuses_strangers_in_both_directions() -> None:
    with pytest.raises(CodecError, match="int is not one of note, ping"):
        UNION.to_bytes(3)  # type: ignore[arg-type]
    with pytest.raises(CodecError, match="unknown record name 'pong'"):
        UNION.from_bytes(dumps(["pong", {}]))
    for shapeless in (["ping"], {"ping": {}}, [1, {}], 5):
        with pytest.raises(CodecError, match="a name and its fields"):
            UNION.from_bytes(dumps(shapeless))


def test_a_type_cannot_have_two_names() -> None:
    with pytest.raises(ValueError, match="two names"):
        TaggedUnion({"a": Ping, "b": Ping})

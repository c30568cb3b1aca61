"""Forms of ids and names."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsched.model import ids
from fedsched.model.errors import BadRequest

FULL = "976eb724-a6cb-8b93-ab7b-e81084892707"


@given(st.binary(min_size=16, max_size=16))
def test_bytes_of_a_uuid_come_back(raw: bytes) -> None:
    assert ids.uuid_bytes(ids.uuid_text(raw)) == raw


@pytest.mark.parametrize("text", ["", "x", FULL.upper(), FULL[:-1], FULL + "0", FULL.replace("-", "")])
def test_only_one_spelling_is_a_uuid(text: str) -> None:
    assert not ids.is_uuid(text)
    with pytest.raises(BadRequest, match="is not a UUID"):
        ids.uuid_bytes(text)


def test_wrong_number_of_bytes_is_a_broken_promise() -> None:
    with pytest.raises(ValueError, match="16 bytes, got 3"):
        ids.uuid_text(b"abc")


def test_prefix_is_spelled_as_ids_are_stored() -> None:
    assert ids.uuid_prefix("976EB724A6") == "976eb724-a6"
    assert ids.uuid_prefix("") == ""
    assert ids.uuid_prefix("976", round_down=True) == "97"
    assert ids.uuid_prefix(FULL) == FULL
    assert ids.short(FULL) == "976eb724"


@pytest.mark.parametrize(
    ("text", "message"), [("97x", "not a prefix"), ("976", "even length"), ("a" * 34, "not a prefix")]
)
def test_bad_prefix_is_refused(text: str, message: str) -> None:
    with pytest.raises(BadRequest, match=message):
        ids.uuid_prefix(text)


def test_names_of_namespaces_and_pools() -> None:
    assert ids.is_namespace_name("team-a")
    assert not ids.is_namespace_name("team_a")
    assert not ids.is_namespace_name("")
    assert ids.is_node_pool_name("gpu_1")
    assert not ids.is_node_pool_name("a" * 129)


def test_allocation_names_carry_their_place() -> None:
    assert ids.alloc_name("web", "app", 7) == "web.app[7]"
    assert ids.alloc_index("web.app[7]") == 7
    assert ids.alloc_index("web.app") == -1
    assert ids.alloc_index("web.app[x]") == -1
    assert ids.alloc_index("[7]") == -1

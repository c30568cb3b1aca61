"""Objects recorded from Nomad come back as they went in."""

from __future__ import annotations

from typing import Any

import pytest

from fedsched.model.record import from_api, from_plain, to_api, to_plain
from tests.model.fixtures import load
from tests.model.strategies import all_records

CLASSES = {kind.__name__: kind for kind in all_records()}
CASES = [(name, i, plain) for name, found in load("recorded").items() for i, plain in enumerate(found)]


@pytest.mark.parametrize(("name", "plain"), [pytest.param(n, p, id=f"{n}-{i}") for n, i, p in CASES])
def test_recorded_object_is_read_in_full_and_written_back_the_same(name: str, plain: dict[str, Any]) -> None:
    unknown: list[str] = []

    record = from_api(CLASSES[name], plain, unknown=unknown)

    assert unknown == []
    assert to_api(record) == plain


@pytest.mark.parametrize(("name", "plain"), [pytest.param(n, p, id=f"{n}-{i}") for n, i, p in CASES])
def test_recorded_object_survives_the_internal_form(name: str, plain: dict[str, Any]) -> None:
    record = from_api(CLASSES[name], plain)

    assert from_plain(CLASSES[name], to_plain(record)) == record


@pytest.mark.parametrize(("name", "plain"), [pytest.param(n, p, id=f"{n}-{i}") for n, i, p in CASES if i == 0])
def test_lower_case_keys_are_read_alike(name: str, plain: dict[str, Any]) -> None:
    assert from_api(CLASSES[name], {key.lower(): value for key, value in plain.items()}) == from_api(
        CLASSES[name], plain
    )


def test_the_recordings_cover_the_main_nouns() -> None:
    assert {"Job", "Allocation", "Node", "Evaluation", "Deployment"} <= {name for name, _, _ in CASES}

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsched.verbs import view


def test_columns_are_left_aligned_two_spaces_apart() -> None:
    text = view.columns(("ID", "Type"), [("web", "service"), ("a-long-name", None), ("", True)])

    assert text == "ID           Type\nweb          service\na-long-name  <none>\n<none>       true\n"


def test_an_empty_table_is_its_head() -> None:
    assert view.columns(("ID", "Type"), []) == "ID  Type\n"


def test_pairs_put_their_signs_under_one_another() -> None:
    assert view.pairs([("ID", "web"), ("Node Pool", ""), ("Stop", False)]) == (
        "ID        = web\nNode Pool = <none>\nStop      = false\n"
    )


def test_wide_and_combining_characters_keep_columns_straight() -> None:
    lines = view.columns(("Name", "X"), [("日本", "1"), ("e\u0301te", "2")]).splitlines()

    assert lines == ["Name  X", "日本  1", "e\u0301te   2"]


@given(st.lists(st.tuples(st.text(), st.text()), min_size=1, max_size=5))
def test_no_cell_can_break_out_of_its_line(rows: list[tuple[str, str]]) -> None:
    text = view.columns(("A", "B"), rows)

    assert len(text.splitlines()) == len(rows) + 1
    assert all(line.isprintable() for line in text[:-1].split("\n"))


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (59.9, "59s"),
        (60, "1m"),
        (72, "1m12s"),
        (3600, "1h"),
        (3605, "1h"),
        (86400 * 3 + 7300, "3d2h"),
        (31_536_000 + 2_592_000, "1y1mo"),
    ],
)
def test_spans_have_two_units_at_most(seconds: float, text: str) -> None:
    assert view.span(seconds) == text


def test_times_are_local_and_never_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    ns = 1_787_308_401 * 10**9

    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    assert view.moment(ns) == "2026-08-21T10:33:21Z"
    monkeypatch.setenv("TZ", "XXX-05:30")
    time.tzset()
    assert view.moment(ns) == "2026-08-21T16:03:21+05:30"
    monkeypatch.undo()
    time.tzset()

    assert view.moment(0) == "N/A"
    assert view.ago(0, ns) == "N/A"
    assert view.ago(ns - 72 * 10**9, ns) == "1m12s ago"
    assert view.ago(ns + 10**9, ns) == "0s ago"


def test_ids_are_cut_unless_asked_for_whole() -> None:
    assert view.short("8f0b2a77-1111") == "8f0b2a77"
    assert view.short("8f0b2a77-1111", verbose=True) == "8f0b2a77-1111"


def test_json_is_indented_by_four() -> None:
    assert view.as_json({"A": ["é"]}) == '{\n    "A": [\n        "é"\n    ]\n}\n'

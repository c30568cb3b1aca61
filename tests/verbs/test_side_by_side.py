from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fedsched.verbs.side_by_side import Part, side_by_side
from fedsched.verbs.view import columns

HEAD = ("ID", "Type")


def shown(*parts: Part) -> str:
    return side_by_side(parts, str)


def test_tables_become_one_with_a_column_for_the_region_in_the_order_of_the_regions() -> None:
    us = Part("us", [columns(HEAD, [("a-long-name", "batch")])])
    eu = Part("eu", [columns(HEAD, [("web", "service"), ("db", "")])])

    assert shown(us, eu) == (
        "Region  ID           Type\n"
        "us      a-long-name  batch\n"
        "eu      web          service\n"
        "eu      db           <none>\n"
    )


def test_a_region_without_a_table_has_a_row_with_what_it_says_instead() -> None:
    table = Part("eu", [columns(HEAD, [("web", "service")])])
    silent = Part("asia-pacific", [], "No path to region 'asia-pacific'")
    idle = Part("us", ["No running jobs\n"])
    empty = Part("za", [columns(HEAD, [])])

    assert shown(silent, table, idle, empty) == (
        "Region        ID   Type\n"
        "asia-pacific  Error: No path to region 'asia-pacific'\n"
        "eu            web  service\n"
        "us            No running jobs\n"
        "za            <none>\n"
    )


def test_single_lines_stand_under_one_another() -> None:
    assert shown(Part("eu", ["No running jobs\n"]), Part("asia", [], "gone")) == (
        "eu    No running jobs\nasia  Error: gone\n"
    )


def test_anything_longer_is_shown_in_blocks() -> None:
    table = columns(HEAD, [("web", "service")])

    assert shown(Part("eu", ["\nHead\n", table]), Part("us", [table]), Part("za", []), Part("x", ["y\n"], "cut")) == (
        'Region: "eu"\nHead\nID   Type\nweb  service\n\n'
        'Region: "us"\nID   Type\nweb  service\n\n'
        'Region: "za"\n<none>\n\n'
        'Region: "x"\ny\nError: cut\n'
    )


def test_tables_that_differ_are_not_mixed() -> None:
    text = shown(Part("eu", [columns(("A",), [("1",)])]), Part("us", [columns(("B",), [("2",)])]))

    assert text == 'Region: "eu"\nA\n1\n\nRegion: "us"\nB\n2\n'


@given(st.lists(st.tuples(st.text(max_size=4), st.text(max_size=4)), max_size=4), st.text(max_size=9))
def test_every_row_is_a_line_whatever_it_holds(rows: list[tuple[str, str]], error: str) -> None:
    text = shown(Part("eu", [columns(HEAD, rows)]), Part("us", [], "".join(c for c in error if c.isprintable())))

    assert len(text.splitlines()) == 1 + max(1, len(rows)) + 1

from __future__ import annotations

from pathlib import Path

from fedsched.jobspec.reference import reference_page


def test_the_reference_page_is_fresh() -> None:
    page = Path(__file__).parents[2] / "docs/reference/jobfile.md"

    assert page.read_text() == reference_page(), "run `python -m fedsched.cli.docs`"


def test_every_kind_of_block_is_described_once() -> None:
    sections = [line for line in reference_page().splitlines() if line.startswith("## ")]

    assert len(sections) == len(set(sections)) > 40
    assert "## job > group > task > template > change_script" in sections

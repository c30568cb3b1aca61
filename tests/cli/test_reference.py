from __future__ import annotations

from pathlib import Path

from fedsched.cli.command import COMMANDS
from fedsched.cli.reference import reference_page
from fedsched.verbs.table import ALIASES, all_verbs, find
from fedsched.verbs.verb import Verb


def test_the_reference_page_is_fresh() -> None:
    page = Path(__file__).parents[2] / "docs/reference/commands.md"

    assert page.read_text() == reference_page(), "run `python -m fedsched.cli.docs`"


def test_every_verb_can_be_found_and_explains_itself() -> None:
    for verb in all_verbs(COMMANDS):
        found, rest = find([*verb.words, "x"], COMMANDS)

        assert found is verb
        assert rest == ["x"]
        assert verb.summary
        assert all(len(line) <= 80 or "http://" in line for line in verb.help().splitlines()), verb.name
        assert len({flag.name for flag in verb.all_flags}) == len(verb.all_flags), verb.name


def test_every_old_spelling_leads_to_a_verb() -> None:
    for old in ALIASES:
        assert isinstance(find([old], COMMANDS)[0], Verb)

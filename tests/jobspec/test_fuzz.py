"""Whatever is thrown at the reader of job files, it answers with values or with problems, never with anything else."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsched.jobspec import dynamic, evaluate
from fedsched.jobspec.context import Context
from fedsched.jobspec.limits import Budget
from fedsched.jobspec.load import job_source
from fedsched.jobspec.problems import JobfileProblems
from fedsched.jobspec.tree import Body
from tests.jobspec.vectors import FIXTURES, expressions, file_for

PIECES = [
    *("${", "%{", "}", "{", "[", "]", "(", ")", '"', "\\", "~", "<<EOF\n", "<<-E\n", "EOF\n", "\n", "=", "for", "if"),
    *("...", "=>", ":", "?", "null", "true", "1e", "9" * 50, ".", "*", "[*]", ".*", "$${", "%%{", "endif", "endfor"),
    *("else", "\u0301", "\ufeff", "\u00e9", "\U0001f468\u200d\U0001f469", "\x00", "//", "/*", "*/", "#", "'", "var.a"),
    *("local.a", "-", "!", "1e2000", "1/0", "dynamic", "content", "for_each", "locals", "variable", ","),
]


def _read(text: str) -> None:
    """Read a file and evaluate everything in it."""
    try:
        loaded = job_source(text, "fuzz.hcl", entropy=bytes, budget=Budget(steps=5_000, volume=1_000_000, blocks=100))
        _evaluate(loaded.body, loaded.context)
    except JobfileProblems as error:
        _check(error)


def _check(error: JobfileProblems) -> None:
    """Every problem can be shown."""
    assert error.problems
    assert all(problem.render() for problem in error.problems)


def _evaluate(body: Body, context: Context) -> None:
    for attribute in body.attributes.values():
        try:
            evaluate.value(attribute.expr, context).to_python()
        except JobfileProblems as error:
            _check(error)
    for block in dynamic.expand(body, context).blocks:
        _evaluate(block.body, block.context or context)


def _mutated(text: str, chance: random.Random) -> str:
    for _ in range(chance.randint(1, 4)):
        at = chance.randint(0, len(text))
        kind = chance.random()
        if kind < 0.4:
            text = text[:at] + chance.choice(PIECES) + text[at:]
        elif kind < 0.6:
            text = text[:at] + text[at + chance.randint(1, 6) :]
        elif kind < 0.8:
            text = text[:at] + chance.choice(expressions())["expr"] + text[at:]
        else:
            text = text[:at] + chr(chance.choice([chance.randrange(128), chance.randrange(0xD800)])) + text[at:]
    return text


@pytest.mark.parametrize("seed", range(40))
def test_a_changed_expression_gives_a_value_or_problems(seed: int) -> None:
    chance = random.Random(seed)

    for _ in range(50):
        case = chance.choice(expressions())
        _read(_mutated(file_for(case, case["expr"]), chance))


@pytest.mark.parametrize("path", sorted((FIXTURES / "jobs").glob("*.hcl")), ids=lambda path: path.stem)
def test_a_changed_job_file_gives_a_value_or_problems(path: Path) -> None:
    chance = random.Random(path.stem)
    text = path.read_text()

    for _ in range(10):
        _read(_mutated(text, chance))


@given(st.lists(st.sampled_from(PIECES), max_size=30))
@settings(max_examples=200)
def test_any_pieces_give_a_value_or_problems(pieces: list[str]) -> None:
    _read('job "j" {\n x = ' + "".join(pieces) + "\n}\n")


@given(st.binary(max_size=200))
def test_any_bytes_give_a_value_or_problems(raw: bytes) -> None:
    _read(raw.decode(errors="surrogateescape"))
    _read(raw.decode("latin-1"))


@given(st.text(alphabet='{}[]",:\\u0123abctruefalsnul$%. \n', max_size=80))
def test_any_json_gives_a_value_or_problems(text: str) -> None:
    _read('{"job": {"j": {"meta": ' + text + "}}}")
    _read("{" + text)

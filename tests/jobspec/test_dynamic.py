"""Blocks made from collections, level by level."""

from __future__ import annotations

import pytest

from fedsched.jobspec import dynamic, evaluate
from fedsched.jobspec.context import Context
from fedsched.jobspec.functions import FUNCTIONS
from fedsched.jobspec.limits import Budget
from fedsched.jobspec.load import parse
from fedsched.jobspec.problems import JobfileProblems, TooMuch
from fedsched.jobspec.tree import Block


def _expanded(text: str, context: Context | None = None) -> list[Block]:
    return dynamic.expand(parse(text, "d.hcl"), context or Context(functions=FUNCTIONS)).blocks


def _attribute(block: Block, name: str) -> object:
    assert block.context is not None
    return evaluate.value(block.body.attributes[name].expr, block.context).to_python()


def test_each_element_makes_a_block_in_place() -> None:
    blocks = _expanded(
        'first {}\ndynamic "port" {\n for_each = ["http", "https"]\n labels = [port.value]\n'
        " content {\n  to = port.key\n }\n}\nlast {}\n"
    )

    assert [block.type for block in blocks] == ["first", "port", "port", "last"]
    assert [block.labels[0].text for block in blocks[1:3]] == ["http", "https"]
    assert [_attribute(block, "to") for block in blocks[1:3]] == [0, 1]


def test_maps_are_gone_through_by_key_and_sets_by_value() -> None:
    text = 'dynamic "a" {\n for_each = %s\n iterator = it\n content {\n  x = "${it.key}=${it.value}"\n }\n}\n'

    assert [_attribute(b, "x") for b in _expanded(text % "{ q = 1, p = 2 }")] == ["p=2", "q=1"]
    assert [_attribute(b, "x") for b in _expanded(text % "toset([3, 1])")] == ["1=1", "3=3"]
    assert _expanded(text % "[]") == []


def test_what_is_inside_sees_the_iterators_around_it() -> None:
    outer = _expanded(
        'dynamic "a" {\n for_each = [1, 2]\n content {\n  dynamic "b" {\n   for_each = [10, 20]\n'
        "   content {\n    x = a.value + b.value\n   }\n  }\n }\n}\n"
    )
    sums = []
    for block in outer:
        assert block.context is not None
        sums += [_attribute(inner, "x") for inner in dynamic.expand(block.body, block.context).blocks]

    assert sums == [11, 21, 12, 22]


def test_a_body_without_dynamic_blocks_is_left_alone() -> None:
    body = parse("a {}\n", "d.hcl")

    assert dynamic.expand(body, Context()) is body


@pytest.mark.parametrize(
    ("text", "words", "place"),
    [
        ("dynamic {\n for_each = []\n content {}\n}\n", "Missing label", (1, 9)),
        ('dynamic "a" "b" {\n for_each = []\n content {}\n}\n', "Extra label", (1, 13)),
        ('dynamic "a" {\n content {}\n}\n', "needs `for_each`", (1, 13)),
        ('dynamic "a" {\n for_each = []\n}\n', "Missing content", (1, 13)),
        ('dynamic "a" {\n for_each = []\n content {}\n content {}\n}\n', "Second content", (4, 2)),
        ('dynamic "a" {\n for_each = []\n stuff {}\n}\n', "Unexpected block", (3, 2)),
        ('dynamic "a" {\n for_each = []\n x = 1\n content {}\n}\n', "not 'x'", (3, 2)),
        ('dynamic "a" {\n for_each = null\n content {}\n}\n', "Null instead", (2, 13)),
        ('dynamic "a" {\n for_each = 5\n content {}\n}\n', "Not a collection", (2, 13)),
        ('dynamic "a" {\n for_each = []\n iterator = "x"\n content {}\n}\n', "Invalid iterator", (3, 13)),
        ('dynamic "a" {\n for_each = []\n labels = "x"\n content {}\n}\n', "Invalid labels", (3, 12)),
        ('dynamic "a" {\n for_each = [1]\n labels = [null]\n content {}\n}\n', "null is no label", (3, 12)),
        ('dynamic "a" {\n for_each = [1]\n labels = [[]]\n content {}\n}\n', "a string is needed", (3, 12)),
    ],
)
def test_a_dynamic_block_is_refused_at_its_place(text: str, words: str, place: tuple[int, int]) -> None:
    with pytest.raises(JobfileProblems, match=words) as caught:
        _expanded(text)

    span = caught.value.problems[0].span
    assert span is not None
    assert (span.first.line, span.first.column) == place


def test_problems_of_several_dynamic_blocks_come_together() -> None:
    with pytest.raises(JobfileProblems) as caught:
        _expanded('dynamic "a" {\n content {}\n}\ndynamic "b" {\n content {}\n}\n')

    assert len(caught.value.problems) == 2


def test_the_number_of_blocks_is_bounded() -> None:
    with pytest.raises(TooMuch, match="blocks"):
        _expanded(
            'dynamic "a" {\n for_each = range(10)\n content {}\n}\n',
            Context(functions=FUNCTIONS, budget=Budget(blocks=5)),
        )

"""Plain bodies, read by ours and by two other readers of the same language."""

from __future__ import annotations

from typing import Any

import hcl2
import pygohcl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsched.jobspec import evaluate
from fedsched.jobspec.context import Context
from fedsched.jobspec.load import parse
from fedsched.jobspec.problems import JobfileProblems
from fedsched.jobspec.tree import Body

names = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True).filter(
    lambda name: name not in ("for", "if", "in", "true", "false", "null", "else", "endif", "endfor")
)
texts = st.text(alphabet="abc xyz019-_./:,'", max_size=12)
scalars = st.one_of(st.integers(-(10**9), 10**9), st.booleans(), texts)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=3)),
    max_leaves=8,
)
bodies = st.dictionaries(names, values, max_size=5)


def written(value: Any) -> str:
    """A value as a job file would write it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return f'"{value}"'
    if isinstance(value, list):
        return "[" + ", ".join(written(item) for item in value) + "]"
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {written(item)}" for key, item in value.items()) + " }"
    return str(value)


def file_of(body: dict[str, Any]) -> str:
    return "".join(f"{name} = {written(value)}\n" for name, value in body.items())


def ours(body: Body) -> dict[str, Any]:
    context = Context()
    return {name: evaluate.value(found.expr, context).to_python() for name, found in body.attributes.items()}


@given(bodies)
@settings(max_examples=100)
def test_ours_reads_what_was_written(body: dict[str, Any]) -> None:
    assert ours(parse(file_of(body), "x.hcl")) == body


@given(bodies)
@settings(max_examples=60)
def test_ours_agrees_with_pygohcl(body: dict[str, Any]) -> None:
    text = file_of(body)

    assert ours(parse(text, "x.hcl")) == pygohcl.loads(text)


@given(st.dictionaries(names, st.one_of(scalars, st.lists(scalars, max_size=3)), max_size=4))
@settings(max_examples=25)
def test_ours_agrees_with_python_hcl2(body: dict[str, Any]) -> None:
    text = file_of(body)
    theirs = hcl2.loads(text)

    assert ours(parse(text, "x.hcl")).keys() == {key for key in theirs if not key.startswith("__")}
    for name, value in body.items():
        if isinstance(value, int):
            assert theirs[name] == ours(parse(text, "x.hcl"))[name]


@given(st.lists(st.tuples(names, st.lists(texts, max_size=2), bodies), max_size=4))
@settings(max_examples=60)
def test_blocks_keep_their_order_labels_and_content(blocks: list[tuple[str, list[str], dict[str, Any]]]) -> None:
    text = "".join(
        f"{type_} {' '.join(written(label) for label in labels)} {{\n{file_of(body)}}}\n"
        for type_, labels, body in blocks
    )

    found = parse(text, "x.hcl").blocks

    assert [(b.type, [label.text for label in b.labels], ours(b.body)) for b in found] == blocks


@pytest.mark.parametrize(
    "text", ["a = \n", "a = [1\n", "a {\n", "a b c\n", 'a = "x\n', "= 1\n", "a = 1 b = 2\n", "}\n", "a = <<EOF\nx\n"]
)
def test_what_pygohcl_refuses_ours_refuses(text: str) -> None:
    with pytest.raises(pygohcl.HCLParseError):
        pygohcl.loads(text)
    with pytest.raises(JobfileProblems):
        parse(text, "x.hcl")

"""Hostile job files: every kind of bomb is refused, in words, before it costs much."""

from __future__ import annotations

import pytest

from fedsched.jobspec import evaluate
from fedsched.jobspec.limits import MAX_BLOCKS, MAX_SOURCE_CHARS, Budget
from fedsched.jobspec.load import job_source
from fedsched.jobspec.problems import MAX_PROBLEMS, JobfileProblems, TooMuch
from fedsched.jobspec.values import Value


def _value(expr: str, rest: str = "", budget: Budget | None = None) -> Value:
    loaded = job_source(f'job "j" {{\n  x = {expr}\n}}\n{rest}', "bomb.hcl", entropy=bytes, budget=budget)
    return evaluate.value(loaded.job.body.attributes["x"].expr, loaded.context)


def _locals(*lines: str) -> str:
    return "locals {\n" + "\n".join(lines) + "\n}\n"


DEEP = {
    "parentheses": "(" * 5000 + "1" + ")" * 5000,
    "lists": "[" * 5000 + "]" * 5000,
    "objects": "{ a = " * 5000 + "1" + " }" * 5000,
    "minus signs": "-" * 5000 + "1",
    "conditionals": "true ? 1 : " * 5000 + "1",
    "calls": "abs(" * 5000 + "1" + ")" * 5000,
    "indexes": "a[" * 5000 + "0" + "]" * 5000,
    "splats": "[]" + "[*]" * 5000,
    "strings in strings": '"${' * 5000 + "1" + '}"' * 5000,
    "loops": "[for a in [1] : " * 5000 + "1" + "]" * 5000,
    "directives": '"' + "%{ if true }" * 5000 + "x" + "%{ endif }" * 5000 + '"',
    "json": "jsondecode(" + '"' + "[" * 5000 + "]" * 5000 + '")',
    "yaml": "yamldecode(" + '"' + "[" * 5000 + "]" * 5000 + '")',
}


@pytest.mark.parametrize("what", DEEP)
def test_nesting_is_bounded(what: str) -> None:
    with pytest.raises(TooMuch, match="deep"):
        _value(DEEP[what])


def test_blocks_in_blocks_are_bounded() -> None:
    with pytest.raises(TooMuch, match="deep"):
        job_source("a {\n" * 1000 + "}\n" * 1000, "deep.hcl")


def test_json_in_json_is_bounded() -> None:
    with pytest.raises(TooMuch, match="deep"):
        job_source('{"job": ' + '{"a": ' * 1000 + "1" + "}" * 1001, "deep.json")


def test_locals_cannot_build_deeper_values_than_anything_else() -> None:
    lines = [f"a{i} = [local.a{i + 1}]" for i in range(500)]

    with pytest.raises(TooMuch, match="deep"):
        _value("local.a0", _locals(*lines, "a500 = 1"))


_TWICE = [f'a{i} = "${{local.a{i - 1}}}${{local.a{i - 1}}}"' for i in range(1, 31)]
_PAIRS = [f"a{i} = [local.a{i - 1}, local.a{i - 1}]" for i in range(1, 31)]
_TABLES = [f"{name} = [for i in range(1000) : range(50)]" for name in ("a", "b")]
_ROUNDS = "[for a in range(1000) : [for b in range(100) : %s]]"
LARGE = {
    "text that doubles": ("local.a30", ['a0 = "xxxxxxxx"', *_TWICE]),
    "lists that double": ("jsonencode(local.a30)", ["a0 = [1, 2]", *_PAIRS]),
    "loops in loops": ("[for a in range(1000) : [for b in range(1000) : a + b]]", []),
    "loops that give nothing": ("[for a in range(1000) : [for b in range(1000) : b if false]]", []),
    "a product of sets": ("setproduct(range(1000), range(1000))", []),
    "padding": ('format("%9999999s", "x")', []),
    "indent": ('indent(1000000, "a\\nb\\nc")', []),
    "replacing": ('replace(local.a, "x", local.a)', [f'a = "{"x" * 4000}"']),
    "joining": ("join(local.a, range(1000))", [f'a = "{"x" * 4000}"']),
    "pattern replacing": ('regex_replace(local.a, "x", local.a)', [f'a = "{"x" * 4000}"']),
    "hashing one text again and again": (_ROUNDS % "sha512(local.a)", [f'a = "{"x" * 200_000}"']),
    "aliases of aliases": (
        'yamldecode("a: &a [x, x, x, x, x, x, x, x, x]\\n'
        + "".join(f"{n}: &{n} [{', '.join([f'*{p}'] * 9)}]\\n" for p, n in zip("abcdefgh", "bcdefghi", strict=True))
        + '")',
        [],
    ),
    "hashes that take long": ('[for a in range(100) : bcrypt("x", 13)]', []),
    "comparing large values": (_ROUNDS % "local.a == local.b", _TABLES),
}


@pytest.mark.parametrize("what", LARGE)
def test_work_and_results_are_bounded(what: str) -> None:
    expr, lines = LARGE[what]

    with pytest.raises(TooMuch):
        _value(expr, _locals(*lines), Budget(steps=100_000, volume=8 << 20))


def test_a_bound_cannot_be_caught() -> None:
    for wrapped in ("try(%s, 1)", "can(%s)", "true ? 1 : %s"):
        with pytest.raises(TooMuch):
            _value(wrapped % "[for a in range(1000) : [for b in range(1000) : a]]", budget=Budget(steps=10_000))


def test_a_refusal_says_where() -> None:
    with pytest.raises(TooMuch) as caught:
        _value('"${format("%9999999s", "x")}"')

    assert caught.value.problems[0].span is not None
    assert "bomb.hcl:2:" in str(caught.value)


@pytest.mark.parametrize("number", ["1e99999", "1e-99999", "9" * 3000, "1e2000 * 1e2000", "1 / 1e2000 / 1e2000"])
def test_numbers_are_bounded(number: str) -> None:
    with pytest.raises(JobfileProblems, match=r"digits|exponent|too large|too close"):
        _value(number)


def test_a_large_number_still_prints() -> None:
    assert len(_value('"${1e2000}"').number.text()) == 2001


def test_sources_are_bounded() -> None:
    with pytest.raises(TooMuch, match="characters"):
        job_source("#" * (MAX_SOURCE_CHARS + 1), "long.hcl")


def test_tokens_are_bounded() -> None:
    with pytest.raises(TooMuch, match="tokens"):
        job_source("\n" * 400_000, "long.hcl")


def test_problems_are_bounded() -> None:
    with pytest.raises(JobfileProblems) as caught:
        job_source("'\n" * 10_000, "long.hcl")

    assert len(caught.value.problems) <= MAX_PROBLEMS


def test_values_with_many_problems_stop_counting() -> None:
    with pytest.raises(JobfileProblems) as caught:
        _value("[" + "var.x," * 10_000 + "]")

    assert len(caught.value.problems) <= MAX_PROBLEMS + 1


def test_a_long_chain_of_operators_is_no_depth() -> None:
    assert _value("1" + " + 1" * 20_000).number.to_int() == 20_001


def test_a_long_chain_of_names_is_no_depth() -> None:
    assert _value("a" + ".b" * 20_000).text.startswith("${a.b.b")


def test_many_locals_are_no_burden() -> None:
    lines = [f"a{i} = local.a{i + 1} + 1" for i in range(5000)]

    assert _value("local.a0", _locals(*lines, "a5000 = 0")).number.to_int() == 5000


def test_a_file_that_is_no_text_is_refused() -> None:
    with pytest.raises(JobfileProblems, match="UTF-8"):
        job_source('job "\ud800" {}', "bad.hcl")


def test_blocks_from_dynamic_blocks_are_counted() -> None:
    budget = Budget(blocks=2)
    budget.block(None)
    budget.block(None)

    with pytest.raises(TooMuch, match=str(MAX_BLOCKS)):
        budget.block(None)

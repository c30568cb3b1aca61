"""What is wrong with a file is said all at once, at its place, with the line it stands in."""

from __future__ import annotations

import pytest

from fedsched.jobspec.graphemes import count_graphemes, split_graphemes
from fedsched.jobspec.load import parse
from fedsched.jobspec.problems import JobfileProblems, Problem, in_order, nearest
from fedsched.jobspec.source import Source, Span
from fedsched.jobspec.syntax import is_json, parse_expression
from tests.jobspec.asking import in_json, problem, problems


def _problems(text: str) -> list[tuple[int, int, str]]:
    with pytest.raises(JobfileProblems) as caught:
        parse(text, "f.hcl")
    found = []
    for one in caught.value.problems:
        assert one.span is not None
        found.append((one.span.first.line, one.span.first.column, one.summary))
    return found


def test_every_wrong_item_is_reported() -> None:
    text = 'a = \nb = [1 2]\nc {\n  d = (1\n  e = 5\n}\nf = "x" y\ng = 1\n1 = 2\n'

    assert _problems(text) == [
        (1, 5, "Value expected"),
        (2, 8, "Comma expected"),
        (5, 3, "Closing parenthesis expected"),
        (7, 9, "New line expected"),
        (9, 1, "Attribute or block expected"),
    ]


def test_an_unclosed_bracket_does_not_hide_what_follows_its_block() -> None:
    assert _problems("a {\n  b = [1,\n}\nc = 'x'\n")[:2] == [(3, 1, "Value expected"), (4, 5, "Invalid character")]


@pytest.mark.parametrize(
    ("text", "place", "words"),
    [
        ("a {\n", (1, 3), "Unclosed block"),
        ("a b\n", (1, 4), "Block without content"),
        ('a "x${1}" {\n}\n', (1, 5), "Invalid label"),
        ("a { b = 1\n c = 2 }\n", (1, 10), "Closing brace"),
        ("a { b {} }\n", (1, 5), "Attribute expected"),
        ("a = 1,\n", (1, 6), "Unexpected comma"),
        ("a = 1\na = 2\n", (2, 1), "Attribute set twice"),
        ("a = foo(1\n", (1, 8), "Unclosed bracket"),
        ("a = [\n", (1, 5), "Unclosed bracket"),
        ("a = { b = 1\n", (1, 5), "Unclosed bracket"),
        ("a = b::1()\n", (1, 8), "Function name"),
        ("a = b::c\n", (1, 9), "Arguments expected"),
        ("a = [for x, 1 in [] : x]\n", (1, 13), "Invalid `for`"),
        ("a = [for x in [] : x => x]\n", (1, 22), "Invalid `for`"),
        ("a = [for x in [] : x y]\n", (1, 22), "Invalid `for`"),
        ("a = { b.c = 1 }\n", (1, 7), "Ambiguous key"),
        ("a = { b = 1 c = 2 }\n", (1, 13), "Comma or new line"),
        ("a = b[1 2]\n", (1, 9), "Closing bracket"),
        ('a = "${1 2}"\n', (1, 10), "Extra text in a template"),
        ('a = "%{ 1 }"\n', (1, 9), "Invalid directive"),
        ('a = "%{ if true }x%{ endfor }"\n', (1, 19), "Unexpected directive"),
        ('a = "%{ for x in [] }x%{ else }%{ endfor }"\n', (1, 23), "Unexpected directive"),
        ('a = "\\U0000123"\n', (1, 6), "Invalid escape"),
        ('a = "x\n', (1, 7), "Newline in a string"),
        ('a = "x', (1, 7), "Unterminated text"),
        ("a = <<EOF\nx\n", (3, 1), "Unterminated text"),
        ("a = 1 ^ 2\n", (1, 7), "Unsupported operator"),
        ("a = ~}\n", (1, 5), "Unsupported operator"),
    ],
)
def test_a_wrong_file_is_refused_at_its_place(text: str, place: tuple[int, int], words: str) -> None:
    first = _problems(text)[0]

    assert first[:2] == place
    assert words in first[2]


def test_a_problem_is_shown_with_its_line_and_a_caret() -> None:
    with pytest.raises(JobfileProblems) as caught:
        parse('job "x" {\n\ttype = batch batch\n}\n', "f.hcl")

    assert caught.value.render() == (
        "f.hcl:2:15: New line expected: this does not belong to the attribute before it\n"
        "  2 |  type = batch batch\n"
        "    |               ^^^^^"
    )


def test_a_long_line_is_shown_in_part() -> None:
    with pytest.raises(JobfileProblems) as caught:
        parse(f"a = [{'1, ' * 500}; 2]\n", "f.hcl")

    shown = caught.value.problems[0].render().splitlines()
    assert len(shown[1]) < 180
    assert shown[1][shown[2].index("^")] == ";"


def test_a_problem_without_a_place_is_only_words() -> None:
    assert Problem("Missing job", "there is none").render() == "Missing job: there is none"


def test_problems_come_in_the_order_of_the_file_each_once() -> None:
    source = Source("a\nb\n", "f")
    late, early = Problem("late", span=Span(source, 2, 3)), Problem("early", span=Span(source, 0, 1))

    assert in_order([Problem("nowhere"), late, early, late]) == [early, late, Problem("nowhere")]


def test_columns_count_what_a_reader_sees() -> None:
    source = Source("a\u0301bc\n\u00e4x", "f")

    assert (source.pos(3).column, source.pos(3).byte) == (3, 4)
    assert (source.pos(6).line, source.pos(6).column, source.pos(6).byte) == (2, 2, 8)
    assert source.line_text(2) == "\u00e4x"
    assert source.line_text(9) == ""


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("abc", 3),
        ("", 0),
        ("\r\n", 1),
        ("e\u0301", 1),
        ("\U0001f1e9\U0001f1ea\U0001f1eb\U0001f1f7", 2),
        ("\U0001f468\u200d\U0001f469\u200d\U0001f467", 1),
        ("\U0001f44d\U0001f3fd", 1),
        ("\u1112\u1161\u11ab", 1),
        ("\ud55c\uae00", 2),
        ("\uac00\u11a8\u11a8", 1),
        ("\u1100\uac00", 1),
        ("\uac01\u1161", 2),
        ("a\u200db", 2),
        ("\x01\u0301", 2),
        ("\u2028a", 2),
    ],
)
def test_what_is_one_character(text: str, count: int) -> None:
    assert count_graphemes(text) == count
    assert "".join(split_graphemes(text)) == text


@pytest.mark.parametrize(
    ("word", "known", "meant"),
    [
        ("prority", ["priority", "type"], "priority"),
        ("tpye", ["type", "name"], "type"),
        ("cout", ["count", "cont"], "cont"),
        ("xyz", ["abc"], ""),
        ("int", ["min", "interval"], ""),
        ("Upper", ["upper"], "upper"),
        ("service", [], ""),
    ],
)
def test_a_slip_is_told_from_another_word(word: str, known: list[str], meant: str) -> None:
    assert nearest(word, known) == meant


def test_json_is_told_by_its_first_character() -> None:
    assert is_json("  {")
    assert not is_json("\n{")
    assert not is_json("a {")


def test_line_ends_of_other_systems_are_fine() -> None:
    body = parse("a = 1\r\nb {\r\n  c = <<EOF\r\nx\r\nEOF\r\n}\r\n", "f.hcl")

    assert list(body.attributes) == ["a"]
    assert body.named("b")[0].body.attributes["c"].expr.span.text.startswith("<<EOF")


def test_a_mark_at_the_beginning_of_a_file_is_passed_over() -> None:
    assert list(parse("\ufeffa = 1\n", "f.hcl").attributes) == ["a"]


def test_a_single_value_takes_nothing_after_it() -> None:
    with pytest.raises(JobfileProblems, match="Extra text"):
        parse_expression(Source("1 2", "-var x"))
    with pytest.raises(JobfileProblems, match="Invalid escape"):
        parse_expression(Source('"\\q"', "-var x"))


@pytest.mark.parametrize(
    ("expr", "result"),
    [
        ("true ? null : 1", "null"),
        ("false ? var.nope : 1", "1"),
        ("{ a = 1, a = 2 }", '{"a":2}'),
        ('{ "a" : 1 }', '{"a":1}'),
        ("{ true = 1 }", '{"true":1}'),
        ("{ for a in [1, 1] : a => a... }", '{"1":[1,1]}'),
        ('"%{ for i, x in ["a", "b"] }${i}${x}%{ endfor }"', '"0a1b"'),
        ("[{ a = [{ b = 1 }] }][*].a[0].b", "[1]"),
        ("[{ a = [{ b = 1 }] }].*.a.0.b", "[1]"),
        ("null[*].a", "[]"),
        ("convert([{ a = 1 }], list(object({ a = number })))[*].a", "[1]"),
        ('"${~ attr.x ~}"', '"${attr.x}"'),
        ('"a${ /* why */ attr.x }"', '"a${attr.x}"'),
        ("<<-A\n  a\n    %{~ if true }b%{ endif }\n  A", '"  a\\nb\\n"'),
        ("<<-A\n  a\n\n   \n    b\n  A", '"a\\n\\n   \\n  b\\n"'),
    ],
)
def test_an_expression_gives(expr: str, result: str) -> None:
    assert in_json(expr) == result


@pytest.mark.parametrize(
    ("expr", "words"),
    [
        ("{ for a in [1, 1] : a => a }", "comes twice"),
        ("[1].a", "write [*]"),
        ("null.a", "Attribute of null"),
        ("{ count = 1 }.cont", "Did you mean 'count'?"),
        ('{ count = 1 }["cont"]', "Did you mean 'count'?"),
        ('"%{ if [] }%{ endif }"', "Not a condition"),
        ("{ (null) = 1 }", "Null as a key"),
        ("nope()", "there is no function 'nope'"),
    ],
)
def test_an_expression_is_refused(expr: str, words: str) -> None:
    assert words in problem(expr)


def test_problems_of_one_expression_come_together() -> None:
    assert len(problems("[var.a, var.b, { c = var.c }]")) == 3
    assert len(problems('"${var.a}${var.b}"')) == 2
    assert len(problems('"a" + "b"')) == 2

"""From text to tree: whole files, var files and single values, in HCL or in its JSON form."""

from __future__ import annotations

from fedsched.jobspec import hcl_json
from fedsched.jobspec.expressions import ExpressionParser
from fedsched.jobspec.lexer import Lexer
from fedsched.jobspec.limits import MAX_SOURCE_CHARS
from fedsched.jobspec.parser import Parser
from fedsched.jobspec.problems import JobfileProblems, Problem, in_order, too_much
from fedsched.jobspec.source import Source
from fedsched.jobspec.templates import Failed
from fedsched.jobspec.tree import Body, Expr


def is_json(text: str) -> bool:
    """Whether a source is in the JSON form: its first character is a brace, with nothing but blanks before it."""
    return text.lstrip(" \t").startswith("{")


def parse_file(text: str, filename: str) -> Body:
    """The tree of a job file. Raises `JobfileProblems` with every syntax problem that was found."""
    source = checked_source(text, filename)
    if is_json(text):
        from fedsched.jobspec.json_shapes import FILE  # reads the job's schema, which plain HCL does not need

        return hcl_json.parse(source, FILE)
    return _parse_hcl(source)


def parse_var_file(text: str, filename: str) -> Body:
    source = checked_source(text, filename)
    return hcl_json.parse(source, hcl_json.NO_BLOCKS) if is_json(text) else _parse_hcl(source)


def parse_expression(source: Source) -> Expr:
    """A text that is one value."""
    checked_source(source.text, source.filename)
    lexer = Lexer(source)
    parser = ExpressionParser(source, lexer.scan(), lexer.problems)
    try:
        expr = parser.parse_expression()
    except Failed:
        raise JobfileProblems(in_order(parser.problems)) from None
    if parser.problems:
        raise JobfileProblems(in_order(parser.problems))
    return expr


def checked_source(text: str, filename: str) -> Source:
    """A source of bearable size, in real characters."""
    if len(text) > MAX_SOURCE_CHARS:
        raise too_much(f"{filename} has {len(text)} characters, at most {MAX_SOURCE_CHARS} are read")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        detail = f"{filename} is not text in UTF-8 (character {error.start})"
        raise JobfileProblems([Problem("Invalid text", detail)]) from None
    return Source(text, filename)


def _parse_hcl(source: Source) -> Body:
    lexer = Lexer(source)
    parser = Parser(source, lexer.scan(), lexer.problems)
    body = parser.parse_file()
    if parser.problems:
        raise JobfileProblems(in_order(parser.problems))
    return body

"""What can be wrong with a template, and where."""

from __future__ import annotations

from typing import NamedTuple

from fedsched.model.errors import BadRequest


class Source(NamedTuple):
    """The text of a template and what people call it."""

    name: str
    text: str

    def position(self, at: int) -> tuple[int, int]:
        """Line and column of an offset, both from 1."""
        before = self.text[:at]
        return before.count("\n") + 1, at - (before.rfind("\n") + 1) + 1


class TemplateError(BadRequest):
    """A template that cannot be read, or that asks for what cannot be done; the message begins with the position."""

    code = "bad_job_template"

    def __init__(self, source: Source, at: int, message: str, *, hint: str = "") -> None:
        line, column = source.position(at)
        super().__init__(f"{source.name}:{line}:{column}: {message}", hint=hint)
        self.wrong = message
        """What is wrong, without the place."""
        self.line = line
        self.column = column


class TooMuch(TemplateError):
    """A template that needs more steps, bytes or time than it is given."""

    code = "template_too_much"


class Wrong(Exception):
    """Raised by functions and operations that do not know where they are called; becomes a `TemplateError` there."""

    def __init__(self, message: str, *, hint: str = "", is_limit: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.is_limit = is_limit

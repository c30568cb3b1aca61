"""What is wrong with something a user sent: all of it at once, each problem with its place.

A problem may have causes, because a job's text says "group web: task db: ..." and its readers know that form:
`error_text` prints the nested list that Nomad's API sends and its clients show; `flat` gives one problem per line.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fedsched.model.errors import BadRequest
from fedsched.model.nearest import nearest


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong. `path` is where, in API names: `TaskGroups[0].Count`."""

    path: str
    message: str
    causes: tuple[Problem, ...] = ()
    hint: str = ""
    """What would be right; shown by front ends, left out of the API's text."""

    @property
    def text(self) -> str:
        """The message with its causes nested below."""
        if not self.causes:
            return self.message
        below = error_text(self.causes)
        return f"{self.message}: {below}" if self.message else below


def error_text(problems: Iterable[Problem]) -> str:
    """Give the whole list as one text, in the nested form of Nomad's API."""
    texts = [problem.text for problem in problems]
    count = "1 error" if len(texts) == 1 else f"{len(texts)} errors"
    return f"{count} occurred:\n" + "".join(f"\t* {text}\n" for text in texts) + "\n"


def flat(problems: Iterable[Problem]) -> Iterator[Problem]:
    """Give the innermost problems, one by one."""
    for problem in problems:
        if problem.causes:
            yield from flat(problem.causes)
        else:
            yield problem


def one_of(word: str, known: Iterable[str]) -> str:
    """Say what a word should have been: the nearest, or all there are."""
    close = nearest(word, known)
    return f'did you mean "{close}"?' if close else f"one of {', '.join(sorted(known))}"


class InvalidJob(BadRequest):
    """A job that was refused; the message lists every problem."""

    code = "invalid_job"

    def __init__(self, problems: Iterable[Problem], *, hint: str = "") -> None:
        self.problems = tuple(problems)
        super().__init__(error_text(self.problems), hint=hint)

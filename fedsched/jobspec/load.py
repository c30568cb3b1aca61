"""The way in: a job file's text and what was given beside it, to a job block that can be decoded."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from fedsched.jobspec.context import Context, Files
from fedsched.jobspec.functions import FUNCTIONS
from fedsched.jobspec.limits import Budget
from fedsched.jobspec.locals import evaluate_locals
from fedsched.jobspec.problems import JobfileProblems, Problem, in_order, nearest
from fedsched.jobspec.syntax import parse_file as parse
from fedsched.jobspec.tree import Block, Body
from fedsched.jobspec.variables import Inputs, Variables

__all__ = ["Loaded", "job_source", "parse"]

_TOP = ("job", "locals", "variable", "variables")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A file whose variables and locals are settled; `job` is still to be decoded, in `context`."""

    job: Block
    body: Body
    """The whole file."""
    context: Context
    problems: tuple[Problem, ...] = ()
    """What is wrong around the job block, but does not keep it from being looked at."""


def job_source(
    text: str,
    filename: str,
    *,
    variables: Mapping[str, str] | None = None,
    var_files: Sequence[tuple[str, str]] = (),
    environ: Mapping[str, str] | None = None,
    strict: bool = True,
    files: Files | None = None,
    directory: str = ".",
    entropy: Callable[[int], bytes] | None = None,
    budget: Budget | None = None,
) -> Loaded:
    """Read a job file. Raises `JobfileProblems` if what is wrong leaves nothing sensible to decode.

    `variables` are those of the command line; `var_files` are (name, text) in order; `files` lets file functions in.
    `entropy` gives random bytes to the few functions that need them; `budget` bounds the work below the usual.
    """
    body = parse(text, filename)
    problems: list[Problem] = []
    job = _job(body, problems)
    base = Context(
        functions=FUNCTIONS,
        allow_files=files is not None,
        files=files,
        directory=directory,
        entropy=entropy,
        budget=budget or Budget(),
    )
    settled = len(problems)
    inputs = Inputs(variables or {}, var_files, environ or {}, strict)
    values = Variables(base, problems).resolve(body, inputs)
    context = replace(base, variables=values)
    if len(problems) == settled:
        context = replace(context, locals=evaluate_locals(body, context, problems))
    if len(problems) > settled or job is None:
        raise JobfileProblems(in_order(problems))
    return Loaded(job, body, context, tuple(problems))


def _job(body: Body, problems: list[Problem]) -> Block | None:
    """The one job block; what does not belong at the top of a file is reported."""
    for name, attribute in body.attributes.items():
        detail = f"{name!r} does not belong at the top of a job file."
        problems.append(Problem("Unknown attribute", detail, attribute.name_span, nearest(name, _TOP)))
    jobs = body.named("job")
    for block in body.blocks:
        if block.type not in _TOP:
            detail = f"{block.type!r} does not belong at the top of a job file."
            problems.append(Problem("Unknown block", detail, block.type_span, nearest(block.type, _TOP)))
    if not jobs:
        problems.append(Problem("Missing job", "the file has no `job` block"))
        return None
    problems += [Problem("Second job", "a file describes one job", extra.span) for extra in jobs[1:]]
    return jobs[0]

"""The front of job files: from a text, in any of its three forms, to a job, or to everything that is wrong with it.

The forms: HCL, the same in JSON (`{"job": {...}}`), and the API's own JSON (`{"Job": {...}}`, or the bare job).
Everything here is pure: what a file may read, and what the environment says, is handed in. Mistakes of the language, of
names and values, and of the job as a whole are reported together, in the order of the file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from fedsched.jobspec import load
from fedsched.jobspec.context import Files
from fedsched.jobspec.decode import Decoder
from fedsched.jobspec.decode_job import decode_job
from fedsched.jobspec.limits import MAX_SOURCE_CHARS
from fedsched.jobspec.places import Places
from fedsched.jobspec.problems import MAX_PROBLEMS, JobfileProblems, Problem, in_order, too_much
from fedsched.model import job_warnings
from fedsched.model.api_form import Malformed, tidy
from fedsched.model.job import MAX_PRIORITY, Job
from fedsched.model.job_defaults import canonicalise
from fedsched.model.job_problems import MAX_COUNT
from fedsched.model.job_problems import problems as job_problems
from fedsched.model.job_submission import from_submission, job_within
from fedsched.model.problem import Problem as ModelProblem
from fedsched.model.problem import flat
from fedsched.model.submission_form import with_defaults
from fedsched.model.text_checks import GRAMMAR, TextChecks

Tree = dict[str, Any]
Entropy = Callable[[int], bytes]

INHERITED: Final = {"ReschedulePolicy": "Reschedule", "Update": "Update", "Migrate": "Migrate"}
"""Members of a group that the job's own lie under."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """What is given beside the file. The defaults are those of a server: nothing of its machine can be seen."""

    variables: Mapping[str, str] = field(default_factory=dict)
    var_files: tuple[tuple[str, str], ...] = ()
    """Name and text of each, in order; later ones win."""
    environ: Mapping[str, str] = field(default_factory=dict)
    is_strict: bool = True
    """Whether a value for a variable that nobody declares is a mistake."""
    files: Files | None = None
    directory: str = "."
    entropy: Entropy | None = None
    """For functions that need chance (`uuidv4`, `bcrypt`); without it they refuse."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What a whole job is held against."""

    max_priority: int
    max_count: int
    texts: TextChecks
    own_types: Container[str] = ()

    def problems(self, job: Job) -> Iterator[ModelProblem]:
        found = job_problems(
            canonicalise(job),
            max_priority=self.max_priority,
            max_count=self.max_count,
            texts=self.texts,
            own_types=self.own_types,
        )
        return flat(found)


@dataclass(frozen=True, slots=True)
class Checked:
    """What came of a job file. `job` is there unless the file could not be read at all."""

    job: Job | None
    tree: Tree
    problems: tuple[Problem, ...] = ()
    warnings: tuple[Problem, ...] = ()
    unknown: tuple[str, ...] = ()
    """Members of an API-form job that no field claims."""


def load_job(text: str, filename: str = "job.hcl", inputs: Inputs = Inputs()) -> Job:
    """Give the job, ready to be submitted.

    Raises `JobfileProblems` with everything that is wrong, the checks of the whole job included.
    """
    checked = check(text, filename, inputs)
    if checked.problems or checked.job is None:
        raise JobfileProblems(checked.problems)
    return checked.job


def parse_job(hcl: str, variables: str = "", *, canonicalize: bool = False, entropy: Entropy | None = None) -> Job:
    """Give the job of a text that somebody sent, unchecked as a whole (see `parse_tree`); defaults of its type are in.

    With `canonicalize` the server's own are too.
    """
    job = _recorded(parse_tree(hcl, variables, entropy=entropy), "job.hcl")
    return canonicalise(job) if canonicalize else job


def parse_tree(
    hcl: str,
    variables: str = "",
    *,
    canonicalize: bool = False,
    filename: str = "job.hcl",
    entropy: Entropy | None = None,
) -> Tree:
    """Give the API form of a text that somebody sent, as the parse endpoint answers.

    Nothing of this machine can be seen: no files, no environment. Values for undeclared variables are passed over. Only
    what was said is in it, unless `canonicalize` asks for the front end's defaults.
    """
    var_files = (("variables", variables),) if variables else ()
    read = read_source(hcl, filename, Inputs(var_files=var_files, is_strict=False, entropy=entropy))
    return with_defaults(read) if canonicalize else read


def read_source(text: str, filename: str, inputs: Inputs) -> Tree:
    """Give the API form of an HCL (or HCL-JSON) job file. Raises `JobfileProblems`."""
    tree, decoder = _decoded(text, filename, inputs)
    if decoder.problems:
        raise JobfileProblems(in_order(decoder.problems)[:MAX_PROBLEMS])
    return tree


def check(
    text: str,
    filename: str = "job.hcl",
    inputs: Inputs = Inputs(),
    *,
    is_api_json: bool = False,
    max_priority: int = MAX_PRIORITY,
    max_count: int = MAX_COUNT,
    texts: TextChecks = GRAMMAR,
    own_types: Container[str] = (),
) -> Checked:
    """Read a job file of any form and say everything that is wrong with it, and what is unwise.

    The limits are a region's own settings; `texts` says who judges patterns, versions and cron lines, and `own_types`
    which job types are served besides those built in.
    """
    rules = Rules(max_priority, max_count, texts, own_types)
    try:
        api = _api_form(text, filename, is_api_json)
        if api is not None:
            return _check_api(api, filename, rules)
        tree, decoder = _decoded(text, filename, inputs)
        job = _recorded(tree, filename)
    except JobfileProblems as error:
        return Checked(None, {}, error.problems)
    found = [*decoder.problems, *_whole_job(job, tree, decoder.places, rules)]
    warned = [_placed(one, job, tree, decoder.places) for one in flat(job_warnings.warnings(job))]
    return Checked(job, tree, tuple(in_order(found)[:MAX_PROBLEMS]), tuple(in_order(warned)[:MAX_PROBLEMS]))


def _decoded(text: str, filename: str, inputs: Inputs) -> tuple[Tree, Decoder]:
    source = load.job_source(
        text,
        filename,
        variables=inputs.variables,
        var_files=inputs.var_files,
        environ=inputs.environ,
        strict=inputs.is_strict,
        files=inputs.files,
        directory=inputs.directory,
        entropy=inputs.entropy,
    )
    decoder = Decoder()
    decoder.problems += source.problems
    return decode_job(decoder, source.job, source.context), decoder


def _recorded(plain: Tree, filename: str, unknown: list[str] | None = None) -> Job:
    """The record of an API-form job; free-form parts have bounds that only show here."""
    try:
        return from_submission(plain, unknown=unknown)
    except Malformed as error:
        raise JobfileProblems([Problem("Unsuitable value", f"{filename}: {error.message}")]) from None


def _whole_job(job: Job, tree: Tree, places: Places, rules: Rules) -> Iterator[Problem]:
    """Check the job as servers will, leaving out what only follows from a mistake reported already."""
    for found in rules.problems(job):
        if not places.is_damaged(tree, found.path):
            yield _placed(found, job, tree, places)


def _placed(found: ModelProblem, job: Job, tree: Tree, places: Places | None) -> Problem:
    if places is None:
        return Problem(f"{found.path}: {_owner(found.path, job)}{found.message}", found.hint)
    inherited = _inherited(found.path)
    if inherited and places.is_said(tree, inherited) and not places.is_said(tree, found.path):
        return Problem(found.message, found.hint, places.span_of(tree, inherited))
    return Problem(f"{_owner(found.path, job)}{found.message}", found.hint, places.span_of(tree, found.path))


def _inherited(path: str) -> str:
    """Where a group's policy may have been said for the whole job; empty if nowhere."""
    group, _, rest = path.partition(".")
    policy, dot, member = rest.partition(".")
    above = INHERITED.get(policy, "") if group.startswith("TaskGroups[") else ""
    return f"{above}{dot}{member}" if above else ""


def _owner(path: str, job: Job) -> str:
    """Say in which group and task a problem is, as people name them."""
    steps = path.split(".")
    owner = ""
    if steps[0].startswith("TaskGroups["):
        group = job.task_groups[int(steps[0][11:-1])]
        owner = f'group "{group.name}": '
        if len(steps) > 1 and steps[1].startswith("Tasks["):
            owner = f'group "{group.name}", task "{group.tasks[int(steps[1][6:-1])].name}": '
    return owner


# --- the API's own JSON


def _api_form(text: str, filename: str, is_api_json: bool) -> Tree | None:
    """The job in a file of the API's form; None when the file is something else."""
    if not is_api_json and not text.lstrip(" \t\r\n").startswith("{"):
        return None
    if len(text) > MAX_SOURCE_CHARS:
        raise too_much(f"{filename} has {len(text)} characters, at most {MAX_SOURCE_CHARS} are read")
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        if not is_api_json:
            return None
        detail = f"line {error.lineno}, column {error.colno}: {error.msg}"
        raise JobfileProblems([Problem("Invalid JSON", f"{filename}: {detail}")]) from None
    except (RecursionError, ValueError) as error:
        raise JobfileProblems(
            [Problem("Invalid JSON", f"{filename}: nested too deeply, or a number too long")]
        ) from error
    job = job_within(value)
    if job is None and is_api_json:
        detail = f'{filename} is no JSON object with a job: write {{"Job": {{"ID": ...}}}}.'
        raise JobfileProblems([Problem("Missing job", detail)])
    return job


def _check_api(plain: Tree, filename: str, rules: Rules) -> Checked:
    unknown: list[str] = []
    job = _recorded(plain, filename, unknown)
    tree: Tree = tidy(Job, plain)
    found = [_placed(one, job, tree, None) for one in rules.problems(job)]
    warned = [_placed(one, job, tree, None) for one in flat(job_warnings.warnings(job))]
    return Checked(job, tree, tuple(found[:MAX_PROBLEMS]), tuple(warned[:MAX_PROBLEMS]), tuple(unknown))

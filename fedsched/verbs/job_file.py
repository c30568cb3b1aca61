"""Reading job files for verbs: which file, in which form, with which variables.

A file in the API's own JSON takes the short way: no parser of the job language is imported for it, and what is wrong
with it the server says. Everything else goes to `fedsched.jobspec`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TextIO

import msgspec

from fedsched.model.errors import BadRequest
from fedsched.model.job import Job, JobSubmission
from fedsched.model.job_submission import from_submission, job_within
from fedsched.verbs.flags import Argument, BadUsage, Flag, Given
from fedsched.verbs.terminal import Terminal

if TYPE_CHECKING:
    from fedsched.jobspec.jobfile import Checked, Inputs

BYTES_MAX: Final = 8 * 1024 * 1024
"""The largest job a server takes; reading more would only delay the refusal."""

KEPT_MAX: Final = 1024 * 1024
"""The largest text that servers keep beside a job."""

MAX_PRIORITY: Final = 32_766
MAX_COUNT: Final = 2**31
"""How far a region's settings may raise its limits: a job to be submitted is refused here only if all would."""

FILE: Final = Argument("file", "job file, or - for standard input")
VAR_FLAGS: Final = (
    Flag("var", "value of a variable of the job file; may be repeated", list, value="name=value"),
    Flag("var-file", "file with values of variables, HCL or JSON; may be repeated, later ones win", list, value="file"),
    Flag("hcl2-strict", "refuse values for variables that the file does not declare", bool, default=True),
)
FILE_FLAGS: Final = (*VAR_FLAGS, Flag("json", 'the file is a job in JSON, as the API takes it: {"Job": {...}}', bool))


class BadJobFile(BadRequest):
    """A job file that cannot be read as a job."""

    code = "bad_job_file"


class JobFile(NamedTuple):
    """A job that was read, and what it was read from."""

    job: Job
    submission: JobSubmission | None
    """Its text, unless that is too long to be kept."""
    warnings: tuple[str, ...]


def read_for_submission(terminal: Terminal, given: Given) -> JobFile:
    """Read the job of a verb that submits it. Raises `BadJobFile` with everything that no server would accept."""
    path = given["file"]
    name = "standard input" if path == "-" else path
    data = _bytes_of(path, terminal.stdin)
    value = _api_json(data, name, is_asked=given["json"])
    if value is not None:
        unknown: list[str] = []
        job = from_submission(value, unknown=unknown)
        if not job.id:
            raise BadJobFile(f"{name}: the job has no ID", hint='give it one with "ID": "web"')
        return JobFile(
            job, _submission(data, "json"), tuple(f"{member} is not known and was ignored" for member in unknown)
        )
    inputs = inputs_of(terminal, given)
    checked = _checked(_text_of(data, name), name, inputs, max_priority=MAX_PRIORITY, max_count=MAX_COUNT)
    if checked.problems or checked.job is None:
        raise BadJobFile("\n".join(("the job file has mistakes", *(one.render() for one in checked.problems))))
    submission = _submission(
        data,
        "hcl2",
        variable_flags=dict(inputs.variables),
        variables="\n".join(text for _, text in inputs.var_files),
    )
    return JobFile(checked.job, submission, ())


def _submission(data: bytes, form: str, **more: Any) -> JobSubmission | None:
    return JobSubmission(source=data.decode(), format=form, **more) if len(data) <= KEPT_MAX else None


def read_given(terminal: Terminal, given: Given) -> Checked:
    """Read the job file that a verb was given and say all that is wrong with it."""
    path = given["file"]
    name = "standard input" if path == "-" else path
    text = _text_of(_bytes_of(path, terminal.stdin), name)
    return _checked(text, name, inputs_of(terminal, given), is_api_json=given["json"])


def inputs_of(terminal: Terminal, given: Given) -> Inputs:
    """What the command line and its environment say about variables."""
    from fedsched.jobspec.disk import DiskFiles
    from fedsched.jobspec.jobfile import Inputs

    variables: dict[str, str] = {}
    for word in given["var"]:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise BadUsage(f"-var {word!r} is no name=value", hint="such as -var count=3")
        variables[name] = value
    var_files = tuple((path, _text_of(_bytes_of(path, terminal.stdin), path)) for path in given["var-file"])
    return Inputs(
        variables=variables,
        var_files=var_files,
        environ=terminal.environ,
        is_strict=given["hcl2-strict"],
        files=DiskFiles(),
        entropy=os.urandom,
        directory=_directory_of(given["file"]),
    )


def _checked(text: str, name: str, inputs: Inputs, **more: Any) -> Checked:
    from fedsched.jobspec.jobfile import check

    return check(text, name, inputs, **more)


def _directory_of(path: str) -> str:
    """Where a job file's own relative paths begin."""
    folder, slash, _ = path.rpartition("/")
    return folder or "/" if slash else "."


def _bytes_of(path: str, stdin: TextIO) -> bytes:
    try:
        if path == "-":
            data = stdin.read(BYTES_MAX + 1).encode()
        else:
            with open(path, "rb") as file:
                data = file.read(BYTES_MAX + 1)
    except OSError as error:
        raise BadJobFile(f"{path}: cannot be read: {error.strerror}", hint="name a job file, or - for input") from error
    if len(data) > BYTES_MAX:
        raise BadJobFile(f"{path}: larger than {BYTES_MAX} bytes", hint="is this a job file?")
    return data


def _text_of(data: bytes, name: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise BadJobFile(f"{name}: byte {error.start} is not UTF-8", hint="job files are text in UTF-8") from None


def _api_json(data: bytes, name: str, *, is_asked: bool) -> dict[str, Any] | None:
    """The job within a file of the API's form; None when it is something else and nobody asked for this form."""
    if not is_asked and not data.lstrip().startswith(b"{"):
        return None
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if not is_asked:
            return None
        raise BadJobFile(f"{name}: {_what_is_wrong(data, error)}", hint="-json is for job files in JSON") from error
    found = job_within(value)
    if found is None and is_asked:
        raise BadJobFile(f"{name}: the job is no JSON object", hint='write it as {"Job": {"ID": ...}}')
    return found


def _what_is_wrong(data: bytes, error: Exception) -> str:
    """Ask the standard library where: it gives line and column, and only now is there time to import it."""
    import json

    try:
        json.loads(data)
    except json.JSONDecodeError as found:
        return f"line {found.lineno}, column {found.colno}: {found.msg}"
    except UnicodeDecodeError as found:
        return f"byte {found.start} is not UTF-8"
    except RecursionError:
        return "nested too deeply"
    return str(error)

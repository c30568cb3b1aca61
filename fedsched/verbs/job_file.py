"""Reading job files for verbs: which file, in which form, with which variables.

A file in the API's own JSON takes the short way: no parser of the job language is imported for it, and what is wrong
with it the server says. Everything else goes to `fedsched.jobspec`.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TextIO

import msgspec

from fedsched.model.errors import BadRequest, FedschedError
from fedsched.model.job import Job, JobSubmission
from fedsched.model.job_submission import from_submission, job_within
from fedsched.verbs.flags import Argument, BadUsage, Flag, Given
from fedsched.verbs.terminal import Terminal

if TYPE_CHECKING:
    from collections.abc import Container

    from fedsched.jobspec.jobfile import Checked, Inputs

BYTES_MAX: Final = 8 * 1024 * 1024
"""The largest job a server takes; reading more would only delay the refusal."""

KEPT_MAX: Final = 1024 * 1024
"""The largest text that servers keep beside a job."""

MAX_PRIORITY: Final = 32_766
MAX_COUNT: Final = 2**31
"""How far a region's settings may raise its limits: a job to be submitted is refused here only if all would."""

FILE: Final = Argument("file", "job file, its http(s) address, or - for standard input")
VAR_FLAGS: Final = (
    Flag("var", "value of a variable of the job file; may be repeated", list, value="name=value"),
    Flag("var-file", "file with values of variables, HCL or JSON; may be repeated, later ones win", list, value="file"),
    Flag("hcl2-strict", "refuse values for variables that the file does not declare", bool, default=True),
)
FILE_FLAGS: Final = (*VAR_FLAGS, Flag("json", 'the file is a job in JSON, as the API takes it: {"Job": {...}}', bool))


class BadJobFile(BadRequest):
    """A job file that cannot be read as a job."""

    code = "bad_job_file"


ASK_S: Final = 5.0
"""Patience with servers that have to say which job types they take."""


class ServedTypes:
    """The job types that the region's servers take. They are asked when it matters: for one that is not built in."""

    def __init__(self, terminal: Terminal, *, if_unheard: bool) -> None:
        self._terminal = terminal
        self._if_unheard = if_unheard
        """What is taken for true if nobody can be asked: whoever submits the job will hear of it."""
        self.unheard = ""
        """Why nobody could be asked."""
        self.advice = ""
        """What would have a server take such jobs."""

    def __contains__(self, word: object) -> bool:
        from fedsched.rpc.methods.agent import AGENT_SCHEDULERS, AgentSchedulersRequest

        try:
            request = AgentSchedulersRequest(everywhere=True)
            reply = self._terminal.client.call(AGENT_SCHEDULERS, request, patience_s=ASK_S)
        except FedschedError as error:
            self.unheard = error.message
            return self._if_unheard
        could = ", ".join(server.name for server in reply.servers if word in server.idle)
        if could:
            self.advice = f"there is a scheduler for {word!r} on {could}: add it to enabled_schedulers there"
        return any(word in server.enabled for server in reply.servers)


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
    served = ServedTypes(terminal, if_unheard=True)
    text = _text_of(data, name)
    checked = _checked(text, name, inputs, max_priority=MAX_PRIORITY, max_count=MAX_COUNT, own_types=served)
    if checked.problems or checked.job is None:
        lines = ("the job file has mistakes", *(one.render() for one in checked.problems))
        raise BadJobFile("\n".join(lines), hint=served.advice)
    submission = _submission(
        data,
        "hcl2",
        variable_flags=dict(inputs.variables),
        variables="\n".join(text for _, text in inputs.var_files),
    )
    return JobFile(checked.job, submission, ())


def _submission(data: bytes, form: str, **more: Any) -> JobSubmission | None:
    return JobSubmission(source=data.decode(), format=form, **more) if len(data) <= KEPT_MAX else None


def read_given(terminal: Terminal, given: Given, own_types: Container[str] = ()) -> Checked:
    """Read the job file that a verb was given and say all that is wrong with it.

    `own_types` has the job types that are served besides those built in; it is asked only about such a one.
    """
    path = given["file"]
    name = "standard input" if path == "-" else path
    text = _text_of(_bytes_of(path, terminal.stdin), name)
    return _checked(text, name, inputs_of(terminal, given), is_api_json=given["json"], own_types=own_types)


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
    from fedsched.drivers.content_checks import CONTENT
    from fedsched.jobspec.jobfile import check

    return check(text, name, inputs, texts=CONTENT, **more)


def _directory_of(path: str) -> str:
    """Where a job file's own relative paths begin."""
    if "://" in path:
        return "."
    folder, slash, _ = path.rpartition("/")
    return folder or "/" if slash else "."


def _bytes_of(path: str, stdin: TextIO) -> bytes:
    if path.startswith(("http://", "https://")):
        from fedsched.verbs.download import download

        return download(path, BYTES_MAX)
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

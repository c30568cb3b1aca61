"""Job files: JSON for now, `{"Job": {...}}` as the API takes it or the bare job."""

from __future__ import annotations

import os
from typing import Any, Final, TextIO

import msgspec

from fedsched.model.errors import BadRequest
from fedsched.model.job import Job
from fedsched.model.job_submission import from_submission

BYTES_MAX: Final = 8 * 1024 * 1024
"""The largest job a server takes; reading more would only delay the refusal."""


class BadJobFile(BadRequest):
    """A job file that cannot be read as a job."""

    code = "bad_job_file"


def read_job(path: str, stdin: TextIO) -> tuple[Job, list[str]]:
    """Read the job at `path`, or from standard input for "-". Also gives the members that no field claims."""
    name = "standard input" if path == "-" else path
    value = _parsed(_bytes_of(path, stdin), name)
    inner = value.get("Job", value.get("job"))
    if isinstance(inner, dict):
        value = inner
    unknown: list[str] = []
    job = from_submission(value, unknown=unknown)
    if not job.id:
        raise BadJobFile(f"{name}: the job has no ID", hint='give it one with "ID": "web"')
    return job, unknown


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


def _parsed(data: bytes, name: str) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise BadJobFile(f"{name}: {_what_is_wrong(data, error)}", hint=_hint(data, name)) from error
    if not isinstance(value, dict):
        raise BadJobFile(f"{name}: the job is no JSON object", hint='write it as {"Job": {"ID": ...}}')
    return value


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


def _hint(data: bytes, name: str) -> str:
    if os.path.splitext(name)[1] in (".hcl", ".nomad") or data.lstrip().startswith(b"job"):
        return "this version reads JSON job files; HCL arrives later"
    return "job files are JSON"

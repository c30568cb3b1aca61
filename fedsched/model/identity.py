"""Workload identities: tokens that a task may ask for."""

from __future__ import annotations

from typing import Annotated

from fedsched.model.record import Record, Seconds, UpdateClass

DESTRUCTIVE = UpdateClass.DESTRUCTIVE

DEFAULT_IDENTITY = "default"
DEFAULT_AUDIENCE = "nomadproject.io"
"""Nomad's own; jobs and verifiers in the field name it."""


class WorkloadIdentity(Record):
    """A token that says which workload its bearer is; minted on demand, never stored."""

    name: Annotated[str, DESTRUCTIVE] = ""
    audience: Annotated[tuple[str, ...], DESTRUCTIVE] = ()
    change_mode: Annotated[str, DESTRUCTIVE] = ""
    change_signal: Annotated[str, DESTRUCTIVE] = ""
    env: Annotated[bool, DESTRUCTIVE, "Exported as an environment variable."] = False
    file: Annotated[bool, DESTRUCTIVE, "Written to a file in the secrets directory."] = False
    filepath: Annotated[str, DESTRUCTIVE] = ""
    service_name: Annotated[str, DESTRUCTIVE] = ""
    ttl_s: Annotated[Seconds, DESTRUCTIVE] = 0.0
    extra_claims: Annotated[tuple[str, ...], DESTRUCTIVE] = ()

"""Metadata of a node that changes while it runs: what is set from outside lies over what its settings say.

A key that is set to nothing (None) hides the one of the settings; without one there, it is simply forgotten. What was
set is kept in the journal, so it outlives the agent, and a changed configuration file does not undo it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from fedsched.codec import from_bytes, to_bytes
from fedsched.model.declare import EMPTY, Record
from fedsched.model.errors import BadRequest

JOURNAL_NAME: Final = "dynamic-meta"
KEYS_MAX: Final = 512
"""Every key is part of the node's record, which every server and scheduler holds in memory."""
KEY_LENGTH_MAX: Final = 128
VALUE_BYTES_MAX: Final = 4096
_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*")

Change = Mapping[str, str | None]


class DynamicMeta(Record):
    """What was set at run time, as the journal keeps it."""

    values: dict[str, str | None] = EMPTY


def merged(static: Mapping[str, str], dynamic: Change) -> dict[str, str]:
    """The metadata that holds."""
    whole: dict[str, str | None] = {**static, **dynamic}
    return {key: value for key, value in sorted(whole.items()) if value is not None}


def applied(static: Mapping[str, str], dynamic: Change, change: Change) -> dict[str, str | None]:
    """What is set at run time after a change; raises `BadRequest` for one that cannot be."""
    if not change:
        raise BadRequest("missing required Meta object", hint="name at least one key: `node meta apply rack=r1`")
    for key, value in change.items():
        _check(key, value)
    after = {**dynamic, **change}
    after = {key: value for key, value in sorted(after.items()) if value is not None or key in static}
    if len(after) > KEYS_MAX:
        raise BadRequest(
            f"the node would have {len(after)} keys of dynamic metadata",
            hint=f"at most {KEYS_MAX}; unset some with `node meta apply -unset`",
        )
    return after


def to_journal(dynamic: Change) -> bytes:
    return to_bytes(DynamicMeta(values=dict(dynamic)))


def from_journal(data: bytes) -> dict[str, str | None]:
    """What was kept; raises `CodecError` if these bytes are not what was written."""
    return dict(from_bytes(data, DynamicMeta).values)


def _check(key: str, value: str | None) -> None:
    if len(key) > KEY_LENGTH_MAX or not _KEY.fullmatch(key):
        raise BadRequest(
            f"{key[:KEY_LENGTH_MAX]!r} is invalid as a metadata key",
            hint=f"names of letters, digits, _ and -, joined by dots, such as rack or team.owner; "
            f"at most {KEY_LENGTH_MAX} characters",
        )
    if value is not None and len(value.encode()) > VALUE_BYTES_MAX:
        raise BadRequest(
            f"the value of metadata key {key!r} has {len(value.encode())} bytes", hint=f"at most {VALUE_BYTES_MAX}"
        )

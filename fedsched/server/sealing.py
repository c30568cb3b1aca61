"""The one place where a variable's items become the bytes that are stored, and back.

The first byte says how they were sealed. So far there is one way, which hides nothing: the data directory is as secret
as what it holds. A key of the region's keyring comes in here and nowhere else; namespace and path are given so that a
sealed variable can be bound to its place and not be moved to another.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fedsched.codec import STORED_LIMITS, dumps, loads
from fedsched.model.errors import FedschedError

PLAIN: Final = 0


class Unsealable(FedschedError):
    """Stored bytes that this server has no way to open."""

    code = "unsealable"


def seal(items: Mapping[str, str], *, namespace: str, path: str) -> bytes:
    """The bytes to store for these items."""
    return bytes([PLAIN]) + dumps(dict(sorted(items.items())))


def open_sealed(sealed: bytes, *, namespace: str, path: str) -> dict[str, str]:
    """The items in stored bytes."""
    if not sealed or sealed[0] != PLAIN:
        kind = f"kind {sealed[0]}" if sealed else "nothing"
        raise Unsealable(
            f"variable {path!r} of namespace {namespace!r} is sealed in a way unknown here ({kind})",
            hint="it was written by a newer version of fedsched",
        )
    items: dict[str, str] = loads(sealed[1:], STORED_LIMITS)
    return items

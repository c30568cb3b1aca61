"""Forms of ids and names, and their checks. Making a fresh one needs chance, which `env` has."""

from __future__ import annotations

import re

from fedsched.model.errors import BadRequest

SHORT_LENGTH = 8
"""Characters of an id that people are shown."""

_UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_HEX = re.compile(r"[0-9a-fA-F-]*")
_NAMESPACE = re.compile(r"[A-Za-z0-9-]{1,128}")
_NODE_POOL = re.compile(r"[A-Za-z0-9-_]{1,128}")


def is_uuid(text: str) -> bool:
    """Whether `text` is a UUID in the one spelling we store: lower case, with dashes."""
    return _UUID.fullmatch(text) is not None


def uuid_bytes(text: str) -> bytes:
    """Give the 16 bytes of a UUID; columns of ids are kept that way."""
    if not is_uuid(text):
        raise BadRequest(f"{text[:64]!r} is not a UUID", hint="write all 36 characters, lower case, with dashes")
    return bytes.fromhex(text.replace("-", ""))


def uuid_text(raw: bytes) -> str:
    """Give the text of a UUID's 16 bytes."""
    if len(raw) != 16:
        raise ValueError(f"a UUID has 16 bytes, got {len(raw)}")
    text = raw.hex()
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def short(identifier: str) -> str:
    return identifier[:SHORT_LENGTH]


def uuid_prefix(text: str, *, round_down: bool = False) -> str:
    """Check a prefix of a UUID and give it spelled as ids are stored.

    Nomad looks whole bytes up, so an odd number of hex digits is an error there; `round_down` drops the last digit, as
    its search does.
    """
    digits = text.replace("-", "").lower()
    if not _HEX.fullmatch(text) or len(digits) > 32:
        raise BadRequest(f"{text[:64]!r} is not a prefix of a UUID", hint="use hex digits and dashes")
    if len(digits) % 2:
        if not round_down:
            raise BadRequest("Input (without hyphens) must be even length", hint=f"{text!r}: drop or add one digit")
        digits = digits[:-1]
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return "-".join(part for part in parts if part)


def is_namespace_name(name: str) -> bool:
    return _NAMESPACE.fullmatch(name) is not None


def is_node_pool_name(name: str) -> bool:
    return _NODE_POOL.fullmatch(name) is not None


def alloc_name(job_id: str, group: str, index: int) -> str:
    """Name the allocation that holds one of a group's places."""
    return f"{job_id}.{group}[{index}]"


def alloc_index(name: str) -> int:
    """Read the place from an allocation's name; -1 when the name has none."""
    head, bracket, rest = name.rpartition("[")
    return int(rest[:-1]) if bracket and head and rest.endswith("]") and rest[:-1].isdecimal() else -1

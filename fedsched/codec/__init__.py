"""Values and records to bytes and back: CBOR on every wire and in the log, bounded before anything is built.

The record half is loaded on first use: a one-shot command that works on plain values does not pay for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fedsched.codec.cbor import (
    DEFAULT_LIMITS,
    STORED_LIMITS,
    CodecError,
    Limits,
    dumps,
    dumps_sorted,
    dumps_stored,
    loads,
)

if TYPE_CHECKING:
    from fedsched.codec.records import TaggedUnion, from_builtins, from_bytes, to_builtins, to_bytes, to_bytes_sparse

__all__ = [
    "DEFAULT_LIMITS",
    "STORED_LIMITS",
    "CodecError",
    "Limits",
    "TaggedUnion",
    "dumps",
    "dumps_sorted",
    "dumps_stored",
    "from_builtins",
    "from_bytes",
    "loads",
    "to_builtins",
    "to_bytes",
    "to_bytes_sparse",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from fedsched.codec import records

    return getattr(records, name)

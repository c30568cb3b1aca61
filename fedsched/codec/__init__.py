"""Values and records to bytes and back: CBOR on every wire and in the log, bounded before anything is built."""

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
from fedsched.codec.records import TaggedUnion, from_builtins, from_bytes, to_builtins, to_bytes

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
]

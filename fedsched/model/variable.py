"""Variables: small secrets and settings under a path, with locks."""

from __future__ import annotations

from typing import Annotated

from fedsched.model.record import EMPTY, DurationText, Index, InJson, Record, StringMap, TimeNs


class VariableLock(Record):
    """Who holds a variable, and how long without renewal."""

    id: str = ""
    ttl_s: DurationText = 15.0
    lock_delay_s: Annotated[DurationText, "How long it stays locked to others after it ran out."] = 15.0


class VariableMetadata(Record):
    """A variable without its items, as lists show it."""

    namespace: str = "default"
    path: str
    lock: VariableLock | None = None
    create_index: Index = 0
    create_time_ns: TimeNs = 0
    modify_index: Index = 0
    modify_time_ns: TimeNs = 0


class Variable(Record):
    """A variable as callers see it."""

    namespace: str = "default"
    path: str
    lock: VariableLock | None = None
    create_index: Index = 0
    create_time_ns: TimeNs = 0
    modify_index: Index = 0
    modify_time_ns: TimeNs = 0
    items: Annotated[StringMap, InJson.KEEP_EMPTY] = EMPTY

    @property
    def metadata(self) -> VariableMetadata:
        return VariableMetadata(**{name: getattr(self, name) for name in VariableMetadata.__struct_fields__})


class EncryptedVariable(Record):
    """A variable as the state keeps it: items sealed with a key of the region's keyring."""

    namespace: str = "default"
    path: str
    lock: VariableLock | None = None
    create_index: Index = 0
    create_time_ns: TimeNs = 0
    modify_index: Index = 0
    modify_time_ns: TimeNs = 0
    key_id: str = ""
    data: bytes = b""


class RootKey(Record):
    """A key of the region's keyring, without its material."""

    key_id: str
    algorithm: str = ""
    create_time_ns: TimeNs = 0
    create_index: Index = 0
    modify_index: Index = 0
    state: Annotated[str, "`active`, `inactive`, `prepublished`, `rekeying` or `deprecated`."] = "active"
    publish_time_ns: TimeNs = 0

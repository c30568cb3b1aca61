"""Facts about the region as a whole: its id, which commands are enabled, and its few settings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Final

from fedsched.codec import CodecError, loads
from fedsched.state.fields import Command, Count, Id
from fedsched.state.past import Keeper, Past
from fedsched.state.result import InvalidCommand, Result, refused
from fedsched.state.table import Key, Row, Table, TableReader

if TYPE_CHECKING:
    from fedsched.state.transaction import Transaction

COMMAND_VERSION: Final = 1
"""The newest set of commands that this code understands."""

CLUSTER_ID: Final = "cluster_id"
ENABLED_VERSION: Final = "enabled_version"
SCHEDULER_CONFIG: Final = "scheduler_config"
AUTOPILOT_CONFIG: Final = "autopilot_config"


class MetaRow(Row):
    """One fact; which of the three values counts goes with the name."""

    table: ClassVar[str] = "meta"

    name: str
    number: int = 0
    text: str = ""
    body: bytes = b""
    create_index: int = 0
    modify_index: int = 0

    @property
    def key(self) -> Key:
        return (self.name,)


class MetaReader:
    """Facts, live or as a snapshot saw them."""

    def __init__(self, rows: TableReader[MetaRow]) -> None:
        self.rows = rows

    def number(self, name: str) -> int:
        row = self.rows.get(name)
        return row.number if row else 0

    def text(self, name: str) -> str:
        row = self.rows.get(name)
        return row.text if row else ""

    @property
    def cluster_id(self) -> str:
        return self.text(CLUSTER_ID)

    @property
    def enabled_version(self) -> int:
        return max(1, self.number(ENABLED_VERSION))

    def config(self, name: str) -> dict[str, Any] | None:
        """A settings record as plain values; None while nobody has set it."""
        row = self.rows.get(name)
        found: dict[str, Any] | None = loads(row.body) if row else None
        return found


class Meta(MetaReader):
    """The live facts."""

    def __init__(self, keeper: Keeper) -> None:
        self.table: Table[MetaRow] = Table(keeper, MetaRow)
        super().__init__(self.table)

    def view(self, past: Past) -> MetaReader:
        return MetaReader(self.table.view(past))

    def put(self, tx: Transaction, name: str, *, number: int = 0, text: str = "", body: bytes = b"") -> None:
        known = self.table.get(name)
        created = known.create_index if known else tx.index
        tx.put(
            self.table,
            MetaRow(name=name, number=number, text=text, body=body, create_index=created, modify_index=tx.index),
        )


class ClusterBegin(Command):
    """Names a new region once; later ones of these change nothing."""

    cluster_id: Id


class EnableVersion(Command):
    """From here on commands up to this version may be used. Proposed once every server has said it knows them."""

    version: Count


class SchedulerConfigSet(Command):
    """Replace the scheduler's settings, given as an encoded map."""

    config: bytes
    check_and_set: bool = False
    check_index: Count = 0


class AutopilotConfigSet(Command):
    """Replace the settings of the care for servers, given as an encoded map."""

    config: bytes
    check_and_set: bool = False
    check_index: Count = 0


class MustStop(Exception):
    """The log demands something that this code is too old for: going on would mean going wrong."""


def apply_begin(tx: Transaction, command: ClusterBegin) -> Result:
    if not tx.store.meta.cluster_id:
        tx.store.meta.put(tx, CLUSTER_ID, text=command.cluster_id)
    return tx.done(cluster_id=tx.store.meta.cluster_id)


def apply_enable(tx: Transaction, command: EnableVersion) -> Result:
    if command.version > COMMAND_VERSION:
        raise MustStop(
            f"entry {tx.index} enables command version {command.version}; this server knows up to {COMMAND_VERSION}: "
            "install a newer fedsched here and start it again"
        )
    if command.version > tx.store.meta.enabled_version:
        tx.store.meta.put(tx, ENABLED_VERSION, number=command.version)
    return tx.done(version=tx.store.meta.enabled_version)


def apply_scheduler_config(tx: Transaction, command: SchedulerConfigSet) -> Result:
    return _set_config(tx, SCHEDULER_CONFIG, command)


def apply_autopilot_config(tx: Transaction, command: AutopilotConfigSet) -> Result:
    return _set_config(tx, AUTOPILOT_CONFIG, command)


def _set_config(tx: Transaction, name: str, command: SchedulerConfigSet | AutopilotConfigSet) -> Result:
    try:
        config = loads(command.config)
    except CodecError as error:
        raise InvalidCommand(f"{name}: {error}") from error
    if not isinstance(config, dict):
        raise InvalidCommand(f"{name}: settings are not a map")
    known = tx.store.meta.rows.get(name)
    index = known.modify_index if known else 0
    if command.check_and_set and command.check_index != index:
        return refused(
            tx.index,
            "conflict",
            f"{name} is at index {index}, not at {command.check_index}",
            hint="read it again and repeat the change on what is there now",
        )
    tx.store.meta.put(tx, name, body=command.config)
    return tx.done(updated=True)

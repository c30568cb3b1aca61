"""Offline recovery: give a region whose majority is lost for good a new membership, by hand.

One surviving server is chosen and stopped; a config without the lost servers is appended to its log as if a leader had
done it. This breaks Raft's promise on purpose: what only the lost majority knew is gone, and what this server held but
the old cluster had not committed becomes true. So it is done to one server, by a person, and it tells what it did.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import NoReturn

from fedsched.model.errors import BadRequest, NotFound
from fedsched.raft.datadir import open_data_dir
from fedsched.raft.entry import Entry, EntryKind
from fedsched.raft.membership import Config, decode_config, encode_config
from fedsched.raft.messages import HardState, Restored, SnapshotMeta
from fedsched.raft.snapshots import SnapshotStore
from fedsched.raft.storage import LogStore, StoreWrite


@dataclass(frozen=True, slots=True)
class Recovery:
    """What was done, for the operator to read and keep."""

    server_id: str
    index: int
    """Where the new config stands in the log; everything before it is now taken as committed."""
    term: int
    entries_uncertain: int
    """Entries that this server did not know to be committed; they count from now on."""
    old_config: Config
    new_config: Config

    def explain(self) -> str:
        """A few plain sentences."""
        lost = sorted(_names(self.old_config) - _names(self.new_config))
        return "\n".join(
            [
                f"Server {self.server_id} now holds a membership of its own making, at index {self.index}"
                f" in term {self.term}:",
                *(
                    f"  {'voter  ' if s.id in self.new_config.voters else 'learner'} {s.name} ({s.id}) at {s.address}"
                    for s in self.new_config.servers
                ),
                f"Its log up to there counts as committed, {self.entries_uncertain} entries of it on its word alone.",
                f"Left out: {', '.join(lost) if lost else 'nobody'}."
                " Never start those servers again with their old data: wipe them and let them join anew.",
                "Start this server now; the others in the list follow once it leads.",
            ]
        )


def recover(data_dir: Path | str, new_config: Config | None = None) -> Recovery:
    """Append `new_config` to the log of the stopped server in `data_dir`; without one, the server alone goes on.

    Raises `DataDirInUse` while the server runs, `BadRequest` for a config that could not work, `NotFound` where there
    is no log to recover, `DamagedStore` or `DamagedSnapshot` if what is there is not to be trusted.
    """
    directory = Path(data_dir)
    if not (directory / "server-id").exists():
        raise NotFound(f"{directory} is no server's data directory", hint="give the data_dir of a stopped server")
    with open_data_dir(directory, _no_new_id, ballast_bytes=0) as opened:
        if new_config is not None:
            _check(new_config, opened.server_id)
        store = LogStore(opened.log_path, recycle_wal=False)
        try:
            found = store.recover()
            snapshots = SnapshotStore(opened.snapshots_path, cluster_id=opened.cluster_id)
            snapshot = snapshots.usable(found.prev_index).meta
            reset = snapshot if snapshot and not _joins(found, snapshot) else None
            if reset is not None:
                found = Restored(found.hard_state, (), reset, reset.index, reset.term)
            elif snapshot is not None:
                found = replace(found, snapshot=snapshot)
            if not (found.entries or found.prev_index):
                raise NotFound(f"the log in {directory} is empty", hint="start the server; it joins or bootstraps")
            config = new_config or _alone(_config_in_force(found), opened.server_id)
            recovery = _plan(found, opened.server_id, config)
            store.write([_write(recovery, reset)])
        finally:
            store.close()
    return recovery


def _no_new_id() -> NoReturn:
    raise AssertionError("a directory without a server id was refused before")


def _alone(old: Config, server_id: str) -> Config:
    me = old.server(server_id)
    if me is None:
        raise BadRequest(
            f"server {server_id} is not in the last membership its log knows",
            hint="recover a server that was a member, or wipe this one and let it join",
        )
    return Config(voters=frozenset([server_id]), servers=(me,))


def _check(config: Config, server_id: str) -> None:
    if config.outgoing or not config.voters:
        raise BadRequest(
            "the new membership has no voters, or is half of a change", hint="name the voters to go on with"
        )
    if server_id not in config.voters:
        raise BadRequest(
            f"server {server_id} would not be a voter of the new membership",
            hint="recover a server that stays: it is the one whose log goes on",
        )
    members = config.voters | config.learners
    if {server.id for server in config.servers} != members or config.voters & config.learners:
        raise BadRequest("the new membership does not name an address for each of its servers, once")


def _plan(found: Restored, server_id: str, new_config: Config) -> Recovery:
    last_index = found.prev_index + len(found.entries)
    last_term = found.entries[-1].term if found.entries else found.prev_term
    known = max(found.hard_state.commit, found.prev_index, found.snapshot.index if found.snapshot else 0)
    return Recovery(
        server_id=server_id,
        index=last_index + 1,
        term=max(found.hard_state.term, last_term) + 1,
        entries_uncertain=max(0, last_index - known),
        old_config=_config_in_force(found),
        new_config=new_config,
    )


def _joins(found: Restored, snapshot: SnapshotMeta) -> bool:
    """Whether the log holds the very entry the snapshot ends with. If not, a crash came before it made way for it."""
    if snapshot.index == found.prev_index:
        return snapshot.term == found.prev_term
    at = snapshot.index - found.prev_index - 1
    return at < len(found.entries) and found.entries[at].term == snapshot.term


def _write(recovery: Recovery, reset: SnapshotMeta | None) -> StoreWrite:
    entry = Entry(recovery.index, recovery.term, EntryKind.CONFIG, encode_config(recovery.new_config))
    hard_state = HardState(recovery.term, None, recovery.index)
    return StoreWrite(number=1, hard_state=hard_state, reset=reset, append=(entry,))


def _config_in_force(found: Restored) -> Config:
    for entry in reversed(found.entries):
        if entry.kind is EntryKind.CONFIG:
            return decode_config(entry.payload)
    return found.snapshot.config if found.snapshot else Config()


def _names(config: Config) -> set[str]:
    return {f"{server.name} ({server.id})" for server in config.servers}

"""The region's state as the thing Raft replicates: entries in, changes out to whoever waits for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fedsched.raft.entry import Entry
from fedsched.state.adopting import adopt_saved, index_ahead
from fedsched.state.apply import apply_bytes
from fedsched.state.changes import Changes
from fedsched.state.image import Restorer, save
from fedsched.state.result import Result
from fedsched.state.store import SCHEMA_VERSION, Store
from fedsched.telemetry.log import Logger


class StateMachine:
    """Holds the live store. Only the applier changes it; everybody else reads."""

    schema_version = SCHEMA_VERSION

    def __init__(self, log: Logger) -> None:
        self.store = Store()
        self._log = log
        self._ahead = 0
        """How far the state counts ahead of the log; see `state.adopting`."""
        self._gathered: list[Changes] = []
        self._listeners: list[Callable[[list[Changes]], None]] = []
        self.alarms = 0

    def listen(self, listener: Callable[[list[Changes]], None]) -> None:
        """Call `listener` with the changes of every applied slice, in order."""
        self._listeners.append(listener)

    def state_index(self, log_index: int) -> int:
        """What the state will call the entry of this index."""
        return log_index + self._ahead

    def apply(self, entry: Entry) -> Result:
        outcome = apply_bytes(self.store, entry.index + self._ahead, entry.payload)
        if outcome.alarm:
            self.alarms += 1
            self._log.error("entry_not_understood", index=entry.index, why=outcome.alarm)
        if outcome.changes:
            self._gathered.append(outcome.changes)
        return outcome.result

    def after_apply(self, index: int) -> None:
        if self._gathered:
            gathered, self._gathered = self._gathered, []
            for listener in self._listeners:
                listener(gathered)

    def image(self) -> Iterator[bytes]:
        return save(self.store.snapshot())

    def load(self) -> _Loader:
        return _Loader(self)

    def load_restore(self, index: int) -> _Loader:
        return _Loader(self, log_index=index)

    def digest(self) -> bytes:
        return self.store.digest()

    def replace(self, store: Store) -> None:
        """Put another state in place of this one; whoever waits has to look again."""
        self.store = store
        self._ahead = index_ahead(store)
        self._gathered.append(Changes(store.index, is_everything=True))


class _Loader:
    """Builds a fresh store from an image; the old one stays in force until the end."""

    def __init__(self, machine: StateMachine, log_index: int = 0) -> None:
        self._machine = machine
        self._log_index = log_index
        self._restorer = Restorer()

    def feed(self, chunk: bytes) -> None:
        self._restorer.feed(chunk)

    def finish(self) -> None:
        store = self._restorer.finish()
        if self._log_index:
            adopt_saved(store, self._machine.store, self._log_index)
        self._machine.replace(store)

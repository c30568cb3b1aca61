"""What the runner needs of the state it replicates. Raft itself never looks inside an entry."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from fedsched.raft.entry import Entry


class ImageLoader(Protocol):
    """Takes a snapshot's chunks one by one; the old state stays in force until `finish`."""

    def feed(self, chunk: bytes) -> None: ...

    def finish(self) -> None:
        """Verify the whole and swap it in, in one step."""


class Machine(Protocol):
    """The replicated state machine: deterministic, total, free of I/O."""

    def apply(self, entry: Entry) -> object:
        """Change the state by one committed entry and return its result.

        A refusal is a result. An exception is a bug on every server at once and stops this one.
        """

    def after_apply(self, index: int) -> None:
        """A slice of entries through `index` has been applied: wake whoever waits on the state."""

    def image(self) -> Iterator[bytes]:
        """The state as it is at this call, in chunks encoded lazily from a view that later entries do not change.

        No step of the iterator may take longer than 5 ms.
        """

    def load(self) -> ImageLoader:
        """Start replacing the state by an image."""

    def load_restore(self, index: int) -> ImageLoader:
        """Start replacing the state by a saved one, as the entry at `index` asks for; the same on every server."""

    def digest(self) -> bytes:
        """Equal states have equal digests; cheap enough to ask every few thousand entries."""

    @property
    def schema_version(self) -> int:
        """The newest form of entries and images that this code understands."""

"""The state that simulated daemons replicate: the small register machine, in the shape that the runner drives."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b

from fedsched.codec import cbor
from fedsched.raft.entry import Entry
from fedsched.sim.daemon_book import Book
from fedsched.sim.machine import Outcome, RegisterMachine

CHUNK_BYTES = 200
"""Small, so that images of a simulated run have many chunks."""


class DaemonMachine:
    """Registers, and a note of every restore.

    A restore leaves the registers alone: clients' histories must stay linearizable across it. It does change the
    digest, by index and content, so that a server that missed one or took another image is found out.
    """

    schema_version = 1

    def __init__(self, server: str, book: Book) -> None:
        self.registers = RegisterMachine()
        self.last = 0
        self.salt = b""
        self.told = 0
        self._server = server
        self._book = book

    def apply(self, entry: Entry) -> Outcome:
        assert entry.index > self.last, f"entry {entry.index} after {self.last}"
        outcome = self.registers.apply(entry.index, entry.payload)
        self.last = entry.index
        self._book.apply(self._server, entry.index, entry.term, entry.payload, outcome, self.registers.digest())
        return outcome

    def after_apply(self, index: int) -> None:
        assert index > self.told, f"told of {index} after {self.told}"
        self.told = index

    def image(self) -> Iterator[bytes]:
        data = cbor.dumps([self.last, self.salt, self.registers.image()])
        return iter([data[at : at + CHUNK_BYTES] for at in range(0, len(data), CHUNK_BYTES)])

    def load(self) -> StateLoader:
        return StateLoader(self, self._book, self._server)

    def load_restore(self, index: int) -> RestoreLoader:
        return RestoreLoader(self, self._book, index)

    def digest(self) -> bytes:
        return blake2b(self.registers.digest() + self.salt, digest_size=16).digest()


class StateLoader:
    """Takes an image in place of the state."""

    def __init__(self, machine: DaemonMachine, book: Book, server: str) -> None:
        self._machine = machine
        self._book = book
        self._server = server
        self._chunks: list[bytes] = []
        self._last = machine.last

    def feed(self, chunk: bytes) -> None:
        assert self._machine.last == self._last, "the state moved while it was being replaced"
        self._chunks.append(chunk)

    def finish(self) -> None:
        machine = self._machine
        assert machine.last == self._last, "the state moved while it was being replaced"
        last, salt, registers = cbor.loads(b"".join(self._chunks))
        assert last >= machine.last, f"an image of {last} would take back {machine.last}"
        machine.registers = RegisterMachine()
        machine.registers.restore(registers)
        machine.last, machine.salt = last, salt
        self._book.loaded(self._server, last, machine.registers.digest())


class RestoreLoader:
    """Takes a saved image that an entry named."""

    def __init__(self, machine: DaemonMachine, book: Book, index: int) -> None:
        self._machine = machine
        self._book = book
        self._index = index
        self._hash = blake2b(digest_size=16)
        self._last = machine.last

    def feed(self, chunk: bytes) -> None:
        assert self._machine.last == self._last, "an entry was applied in the middle of a restore"
        self._hash.update(chunk)

    def finish(self) -> None:
        machine = self._machine
        assert machine.last == self._last, "an entry was applied in the middle of a restore"
        machine.salt = blake2b(machine.salt + self._hash.digest() + str(self._index).encode(), digest_size=16).digest()
        self._book.counts["restores applied"] += 1

"""The ring of keys as it lies on disk, and changes of it while packets are sealed with it.

The file wins over the key in the settings: after a rotation the setting is what is out of date. A change is on disk
before it is in force, so that no restart goes back behind it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import trio

from fedsched.gossip.durable_file import write_durably
from fedsched.gossip.keyring import KEYS_MAX, BadKey, Keyring, fingerprint, read_key, show_key
from fedsched.model.errors import Unavailable

FILE: Final = "gossip.keyring"
BYTES_MAX: Final = 16 * 1024


class Ring(NamedTuple):
    """What a member begins with."""

    keys: tuple[bytes, ...]
    is_overruled: bool = False
    """The settings name a key that does not seal any more, or never did."""


def load_ring(directory: Path, configured: Sequence[bytes]) -> Ring:
    """The keys on disk, or else the configured ones; `BadKey` for a file that cannot be read."""
    path = directory / FILE
    try:
        with path.open("rb") as file:
            data = file.read(BYTES_MAX + 1)
    except FileNotFoundError:
        return Ring(tuple(configured))
    except OSError as error:
        raise BadKey(f"{path}: {error.strerror or error}", hint="this file holds the gossip keys in force") from error
    keys = _read(path, data)
    return Ring(keys, is_overruled=bool(configured) and configured[0] != keys[0])


def _read(path: Path, data: bytes) -> tuple[bytes, ...]:
    hint = "bring the file back from a backup, or delete it to begin with server.encrypt again"
    try:
        texts = json.loads(data)
        if not isinstance(texts, list) or not texts or len(texts) > KEYS_MAX:
            raise BadKey("not a list of keys")
        if not all(isinstance(text, str) for text in texts):
            raise BadKey("not a list of keys")
        return tuple(read_key(text) for text in texts)
    except (ValueError, RecursionError, BadKey) as error:
        why = error.message if isinstance(error, BadKey) else "not JSON"  # never what stands in the file
        raise BadKey(f"{path} cannot be understood: {why}", hint=hint) from None


class KeyStore:
    """The ring of a running member: each change is written down, then in force."""

    def __init__(self, directory: Path, keyring: Keyring) -> None:
        self._path = directory / FILE
        self._ring = keyring
        self._turn = trio.Lock()

    @property
    def fingerprints(self) -> tuple[str, ...]:
        """Names of the keys, the primary one first."""
        return tuple(map(fingerprint, self._ring.keys))

    async def install(self, key: bytes) -> None:
        await self._change(lambda ring: ring.install(key))

    async def use(self, name: str) -> None:
        """Seal with the key of this fingerprint from now on."""
        await self._change(lambda ring: ring.use(_named(ring, name)))

    async def remove(self, name: str) -> None:
        """Drop the key of this fingerprint; one that is not there is no error."""
        await self._change(lambda ring: ring.remove(_named(ring, name)) if _has(ring, name) else None)

    async def _change(self, change: Callable[[Keyring], None]) -> None:
        async with self._turn:
            wanted = Keyring(self._ring.keys)
            change(wanted)
            if wanted.keys == self._ring.keys and self._path.exists():
                return
            data = json.dumps([show_key(key) for key in wanted.keys]).encode()
            try:
                await trio.to_thread.run_sync(write_durably, self._path, data)
            except OSError as error:
                raise Unavailable(f"{self._path} cannot be written: {error.strerror or error}") from error
            change(self._ring)


def _has(ring: Keyring, name: str) -> bool:
    return any(fingerprint(key) == name for key in ring.keys)


def _named(ring: Keyring, name: str) -> bytes:
    for key in ring.keys:
        if fingerprint(key) == name:
            return key
    raise BadKey(f"no key {name!r} is installed", hint="install it on every member first")

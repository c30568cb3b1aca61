"""The ring on disk: it wins over the settings, is never shown, and changes as a whole or not at all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import trio

from fedsched.gossip.keyring import BadKey, Keyring, fingerprint, show_key
from fedsched.gossip.keyring_file import FILE, KeyStore, Ring, load_ring
from fedsched.model.errors import Unavailable

ONE, TWO = bytes(range(32)), bytes(range(1, 33))


def a_store(directory: Path, *keys: bytes) -> tuple[KeyStore, Keyring]:
    ring = Keyring(keys or (ONE,))
    return KeyStore(directory, ring), ring


def test_without_a_file_the_configured_key_counts(tmp_path: Path) -> None:
    assert load_ring(tmp_path, (ONE,)) == Ring((ONE,))
    assert load_ring(tmp_path, ()) == Ring(())


def test_a_rotation_is_there_after_a_restart_whatever_the_settings_say(tmp_path: Path) -> None:
    async def main() -> None:
        store, ring = a_store(tmp_path)
        await store.install(TWO)
        assert load_ring(tmp_path, (ONE,)) == Ring((ONE, TWO))
        await store.use(fingerprint(TWO))
        assert ring.keys == (TWO, ONE)
        assert store.fingerprints == (fingerprint(TWO), fingerprint(ONE))
        assert load_ring(tmp_path, (ONE,)) == Ring((TWO, ONE), is_overruled=True)
        await store.remove(fingerprint(ONE))
        assert load_ring(tmp_path, (TWO,)) == Ring((TWO,))
        assert load_ring(tmp_path, ()) == Ring((TWO,))

    trio.run(main)
    assert (tmp_path / FILE).stat().st_mode & 0o777 == 0o600
    assert json.loads((tmp_path / FILE).read_text()) == [show_key(TWO)]


def test_doing_it_twice_is_as_good_as_once(tmp_path: Path) -> None:
    async def main() -> None:
        store, ring = a_store(tmp_path)
        for _ in range(2):
            await store.install(TWO)
            await store.use(fingerprint(TWO))
        for _ in range(2):
            await store.remove(fingerprint(ONE))
        assert ring.keys == (TWO,)

    trio.run(main)


def test_what_cannot_be_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        store, ring = a_store(tmp_path)
        with pytest.raises(BadKey, match="no key"):
            await store.use(fingerprint(TWO))
        with pytest.raises(BadKey, match="primary key cannot be removed"):
            await store.remove(fingerprint(ONE))
        with pytest.raises(BadKey, match="a key of 5 bytes"):
            await store.install(b"short")
        assert ring.keys == (ONE,)

    trio.run(main)
    assert not (tmp_path / FILE).exists()


def test_a_key_that_cannot_be_written_down_is_not_in_force(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: object) -> int:
        raise OSError(28, "No space left on device")

    async def main() -> None:
        store, ring = a_store(tmp_path)
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", full)
            with pytest.raises(Unavailable, match="No space left"):
                await store.install(TWO)
        assert ring.keys == (ONE,)
        await store.install(TWO)
        assert ring.keys == (ONE, TWO)

    trio.run(main)


@pytest.mark.parametrize(
    "content",
    [b"", b"{}", b"[]", b"[1]", b'["short"]', b"\xff", b"[" * 5000, json.dumps([show_key(ONE)] * 17).encode()],
)
def test_a_file_that_makes_no_sense_stops_the_start_and_is_not_quoted(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(BadKey, match="cannot be understood") as refused:
        load_ring(tmp_path, (ONE,))
    assert show_key(ONE) not in str(refused.value)


def test_a_fingerprint_does_not_begin_like_the_key() -> None:
    assert fingerprint(ONE) != fingerprint(TWO)
    assert len(fingerprint(ONE)) == 16
    assert not ONE.hex().startswith(fingerprint(ONE))

"""Sealing packets: AES-GCM with a ring of keys and a label that tells pools apart.

A sealed packet is `version, key hint, nonce (12), ciphertext and tag`; the label goes in front, in the clear, and is
authenticated. The hint is the first byte of the key's hash: the right key is tried first, because a wrong try costs a
whole pass. It is a hint only, all keys are tried before a packet is refused.

The nonce comes from the caller, who owns chance. Nonces are random: fewer than 2**32 packets under one key, after which
it must be replaced (`sealed` counts them). Nothing here prevents replay; old claims lose by their incarnation.

Keys are replaced in three steps that each reach every member before the next: install, use, remove.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from hashlib import sha256
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from fedsched.model.errors import FedschedError

SEALED_VERSION: Final = 1
LABEL_BYTE: Final = 244
LABEL_MAX: Final = 255
NONCE_BYTES: Final = 12
TAG_BYTES: Final = 16
SEAL_OVERHEAD: Final = 2 + NONCE_BYTES + TAG_BYTES
KEY_SIZES: Final = (16, 24, 32)
KEYS_MAX: Final = 16
PACKETS_PER_KEY_WARN: Final = 2**31


class BadKey(FedschedError):
    """A key or an operation on keys that cannot be."""

    code = "bad_gossip_key"
    http_status = 400


class Unreadable(FedschedError):
    """A packet that no key opens, or of another pool."""

    code = "gossip_unreadable"
    http_status = 400


FINGERPRINT_BYTES: Final = 8


def fingerprint(key: bytes) -> str:
    """A name for a key that may be shown to anybody and lead nobody to the key."""
    return sha256(b"fedsched gossip key\0" + key).hexdigest()[: 2 * FINGERPRINT_BYTES]


def show_key(key: bytes) -> str:
    """A key as it stands in settings."""
    return base64.b64encode(key).decode()


def read_key(text: str) -> bytes:
    """A key as it stands in settings: base64 of 16, 24 or 32 bytes."""
    try:
        key = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise BadKey(f"not base64: {error}", hint="make one with 32 random bytes") from error
    _check_size(key)
    return key


def label_header(label: bytes) -> bytes:
    """What stands in front of every packet and stream of a labelled pool."""
    if len(label) > LABEL_MAX:
        raise BadKey(f"a label of {len(label)} bytes; at most {LABEL_MAX} are allowed")
    return bytes((LABEL_BYTE, len(label))) + label if label else b""


def strip_label(data: bytes, label: bytes) -> bytes:
    """The packet behind its label; `Unreadable` if it belongs to another pool."""
    header = label_header(label)
    if not data.startswith(header) or (not label and data[:1] == bytes((LABEL_BYTE,))):
        raise Unreadable("the packet's label is not that of this pool")
    return data[len(header) :]


class Keyring:
    """The keys of a pool; the first one seals."""

    def __init__(self, keys: Sequence[bytes], label: bytes = b"") -> None:
        if not keys:
            raise BadKey("a keyring without a key")
        for key in keys:
            _check_size(key)
        self._keys = list(dict.fromkeys(keys))[:KEYS_MAX]
        self._ciphers = {key: AESGCM(key) for key in self._keys}
        self._label = label
        self._header = label_header(label)
        self.sealed = 0
        """Packets sealed with the primary key since it became that."""

    @property
    def keys(self) -> tuple[bytes, ...]:
        """The primary key first."""
        return tuple(self._keys)

    def install(self, key: bytes) -> None:
        """From now on packets under this key are readable. Installing it twice is no error."""
        _check_size(key)
        if key in self._ciphers:
            return
        if len(self._keys) >= KEYS_MAX:
            raise BadKey(f"there are {KEYS_MAX} keys already", hint="remove old ones first")
        self._keys.append(key)
        self._ciphers[key] = AESGCM(key)

    def use(self, key: bytes) -> None:
        """Seal with this key from now on; every member must have it installed by then."""
        if key not in self._ciphers:
            raise BadKey("the key to use is not installed", hint="install it on every member first")
        if key != self._keys[0]:
            self._keys.remove(key)
            self._keys.insert(0, key)
            self.sealed = 0

    def remove(self, key: bytes) -> None:
        if key == self._keys[0]:
            raise BadKey("the primary key cannot be removed", hint="use another one first")
        if key in self._ciphers:
            self._keys.remove(key)
            del self._ciphers[key]

    def seal(self, data: bytes, nonce: bytes) -> bytes:
        key = self._keys[0]
        self.sealed += 1
        sealed = self._ciphers[key].encrypt(nonce, data, self._label)
        return b"".join((self._header, bytes((SEALED_VERSION, _hint(key))), nonce, sealed))

    def open(self, packet: bytes) -> bytes:
        """What was sealed; `Unreadable` for everything else."""
        body = strip_label(packet, self._label)
        if len(body) < SEAL_OVERHEAD or body[0] != SEALED_VERSION:
            raise Unreadable("not a sealed packet")
        hint, nonce, sealed = body[1], body[2 : 2 + NONCE_BYTES], body[2 + NONCE_BYTES :]
        for key in sorted(self._keys, key=lambda key: _hint(key) != hint):
            try:
                return self._ciphers[key].decrypt(nonce, sealed, self._label)
            except InvalidTag:
                continue
        raise Unreadable(f"none of {len(self._keys)} keys opens the packet (its hint is {hint:02x})")


def _hint(key: bytes) -> int:
    return sha256(key).digest()[0]


def _check_size(key: bytes) -> None:
    if len(key) not in KEY_SIZES:
        raise BadKey(f"a key of {len(key)} bytes; 16, 24 or 32 are possible", hint="make one with 32 random bytes")

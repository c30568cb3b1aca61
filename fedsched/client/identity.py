"""Who this node is: an id that everybody may know and a secret that only servers are shown.

Both are made up at the first start and kept in a small file of their own, apart from the journal, so that a damaged
journal does not make another node of this host.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from uuid import UUID

from fedsched.model.ids import is_uuid
from fedsched.telemetry.log import Logger

FILE: Final = "node-identity"
FILE_BYTES_MAX: Final = 4096
HOST_ID_FILES: Final = ("/sys/class/dmi/id/product_uuid", "/etc/machine-id")


@dataclass(frozen=True, slots=True)
class NodeIdentity:
    node_id: str
    secret_id: str

    def __repr__(self) -> str:
        return f"NodeIdentity({self.node_id!r})"  # the secret is in no log

    def to_bytes(self) -> bytes:
        text = f"{self.node_id} {self.secret_id}"
        return json.dumps({"id": self.node_id, "secret": self.secret_id, "crc": zlib.crc32(text.encode())}).encode()


def identity_from(data: bytes) -> NodeIdentity | None:
    """Read it; None if these bytes are not what was written."""
    try:
        found = json.loads(data)
        node_id, secret_id, crc = found["id"], found["secret"], found["crc"]
    except (ValueError, KeyError, TypeError):
        return None
    if not (isinstance(node_id, str) and isinstance(secret_id, str) and is_uuid(node_id) and is_uuid(secret_id)):
        return None
    return NodeIdentity(node_id, secret_id) if crc == zlib.crc32(f"{node_id} {secret_id}".encode()) else None


def open_identity(
    state_dir: Path, new_id: Callable[[], str], log: Logger, *, kept: bytes = b"", host_id: str = ""
) -> NodeIdentity:
    """This node's identity, made and written down if there is none yet.

    `kept` is a copy from elsewhere (the journal), for when the file is damaged. With a `host_id` a new node takes its
    id from that, so that a reinstalled host comes back as itself.
    """
    path = state_dir / FILE
    found = identity_from(path.read_bytes()[:FILE_BYTES_MAX]) if path.exists() else None
    if found is not None:
        return found
    if path.exists():
        aside = _free_name(path)
        path.replace(aside)
        log.error("node_identity_damaged", file=str(path), kept_as=str(aside), is_known_elsewhere=bool(kept))
    identity = identity_from(kept) or NodeIdentity(host_id or new_id(), new_id())
    _write(path, identity.to_bytes())
    return identity


def id_of_host(paths: tuple[str, ...] = HOST_ID_FILES) -> str:
    """An id that stays with the machine; empty if it has none that can be read."""
    for path in paths:
        try:
            text = Path(path).read_text().strip()
            return str(UUID(text))
        except (OSError, ValueError):
            continue
    return ""


def _free_name(path: Path) -> Path:
    number = 1
    while (aside := path.with_name(f"{path.name}.damaged-{number}")).exists():
        number += 1
    return aside


def _write(path: Path, data: bytes) -> None:
    fresh = path.with_name(f".{path.name}.new")
    fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(fd, 0o600)
        os.write(fd, data)
        os.fsync(fd)
    finally:
        os.close(fd)
    fresh.replace(path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)

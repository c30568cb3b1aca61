"""Certificates for tests, made with the `openssl` command: an authority, and servers that it vouches for."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedsched.server.tls import TlsFiles

NEEDS_OPENSSL = pytest.mark.skipif(
    shutil.which("openssl") is None, reason="the openssl command, which makes the certificates, is not installed"
)
_KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-sha256")


@dataclass(frozen=True)
class Authority:
    """Signs certificates under one directory."""

    directory: Path

    @property
    def file(self) -> Path:
        return self.directory / "ca.pem"

    def certificate(self, name: str, *hosts: str) -> TlsFiles:
        """A certificate for these names, with its key."""
        key, request, signed = (self.directory / f"{name}.{kind}" for kind in ("key", "csr", "pem"))
        extensions = self.directory / f"{name}.ext"
        extensions.write_text("subjectAltName=" + ",".join(hosts) + "\n")
        _openssl("req", *_KEY, "-keyout", str(key), "-out", str(request), "-subj", f"/CN={name}")
        _openssl(
            *("x509", "-req", "-in", str(request), "-out", str(signed), "-days", "30", "-sha256"),
            *("-CA", str(self.file), "-CAkey", str(self.directory / "ca.key"), "-set_serial", "2"),
            *("-extfile", str(extensions)),
        )
        return TlsFiles(str(self.file), str(signed), str(key))

    def server(self, region: str = "eu") -> TlsFiles:
        """What a server of the region shows to everybody, commands on this machine included."""
        return self.certificate(f"server-{region}", f"DNS:server.{region}.fedsched", "DNS:localhost", "IP:127.0.0.1")


def an_authority(directory: Path, name: str = "authority") -> Authority:
    directory.mkdir(parents=True, exist_ok=True)
    _openssl(
        *("req", "-x509", *_KEY, "-days", "30", "-subj", f"/CN={name}"),
        *("-keyout", str(directory / "ca.key"), "-out", str(directory / "ca.pem")),
    )
    return Authority(directory)


def _openssl(*words: str) -> None:
    subprocess.run(["openssl", *words], check=True, capture_output=True, stdin=subprocess.DEVNULL)

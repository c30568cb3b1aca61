"""TLS on the server port: both sides show a certificate of the region's own authority, or there is no connection.

A server's certificate carries the name `server.REGION.fedsched`; whoever dials a server of that region checks it, so
that a certificate of a client agent, though signed by the same authority, cannot stand in for a server. Regions that
talk to each other share the authority.
"""

from __future__ import annotations

import ssl
from dataclasses import dataclass

from fedsched.model.errors import BadRequest


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where the certificates lie."""

    ca_file: str
    cert_file: str
    key_file: str


@dataclass(frozen=True, slots=True)
class TlsContexts:
    """One context to listen with, one to dial with, and the name a dialled server must have."""

    listening: ssl.SSLContext
    dialling: ssl.SSLContext
    server_name: str
    """Of a server of the own region."""

    def name_in(self, region: str) -> str:
        """The name that a server of some region must have; no region is the own one."""
        return server_name(region) if region else self.server_name


def server_name(region: str) -> str:
    return f"server.{region}.fedsched"


def load_contexts(files: TlsFiles, region: str, *, verify_server_name: bool = True) -> TlsContexts:
    """Read the certificates; an error names the file that does not fit."""
    listening = _context(ssl.PROTOCOL_TLS_SERVER, files)
    dialling = _context(ssl.PROTOCOL_TLS_CLIENT, files)
    dialling.check_hostname = verify_server_name
    dialling.verify_mode = ssl.CERT_REQUIRED
    return TlsContexts(listening, dialling, server_name(region))


def _context(protocol: ssl._SSLMethod, files: TlsFiles) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    try:
        context.load_verify_locations(files.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise BadRequest(
            f"tls.ca_file {files.ca_file!r}: {error}", hint="give the PEM file of the authority"
        ) from error
    try:
        context.load_cert_chain(files.cert_file, files.key_file)
    except (OSError, ssl.SSLError) as error:
        names = f"tls.cert_file {files.cert_file!r} with tls.key_file {files.key_file!r}"
        raise BadRequest(f"{names}: {error}", hint="the key must belong to the certificate, both as PEM") from error
    context.verify_mode = ssl.CERT_REQUIRED
    return context

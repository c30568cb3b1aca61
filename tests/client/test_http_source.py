"""Downloads as the download process does them, without the process around them."""

from __future__ import annotations

import datetime
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedsched.client.fetch.http_source import HttpRules, download
from fedsched.client.fetch.limits import FetchFailed, FetchLimits

LOCAL = HttpRules(("http", "https"), ("127.0.0.0/8", "::1/128"))


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        match self.path:
            case "/chunked":
                self._head(200, {"Transfer-Encoding": "chunked"})
                self.wfile.write(b"3\r\nabc\r\n0\r\n\r\n")
            case "/chunked-broken":
                self._head(200, {"Transfer-Encoding": "chunked"})
                self.wfile.write(b"30\r\nabc")
                self.close_connection = True
            case "/short":
                self._head(200, {"Content-Length": "100"})
                self.wfile.write(b"abc")
                self.close_connection = True
            case "/endless":
                self._head(200, {"Connection": "close"})
                try:
                    while True:
                        self.wfile.write(b"x" * 10_000)
                except OSError:
                    self.close_connection = True
            case "/no-http":
                self.wfile.write(b"SSH-2.0-OpenSSH\r\n")
                self.close_connection = True
            case "/round":
                self._head(302, {"Location": "/round", "Content-Length": "0"})
            case "/out":
                self._head(307, {"Location": "ftp://elsewhere/x", "Content-Length": "0"})
            case "/moved":
                self._head(301, {"Location": "/chunked", "Content-Length": "0"})
            case "/nowhere":
                self._head(302, {"Content-Length": "0"})
            case _:
                self._head(404, {"Content-Length": "0"})

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


def serve(server: ThreadingHTTPServer) -> Iterator[int]:
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield int(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def port() -> Iterator[int]:
    yield from serve(ThreadingHTTPServer(("127.0.0.1", 0), Handler))


class QuietServer(ThreadingHTTPServer):
    def handle_error(self, request: Any, client_address: Any) -> None:
        """Handshakes that clients refuse are what is tested."""


@pytest.fixture
def tls_port(tmp_path: Path) -> Iterator[int]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(a_certificate(tmp_path))
    server = QuietServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    yield from serve(server)


def a_certificate(place: Path) -> Path:
    """A certificate that nobody has signed, with its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    builder = builder.serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ) + builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    (place / "cert.pem").write_bytes(pem)
    return place / "cert.pem"


def get(url: str, rules: HttpRules = LOCAL, **limits: Any) -> bytes:
    pieces: list[bytes] = []
    size = download(url, {}, rules, FetchLimits(**limits), pieces.append)
    body = b"".join(pieces)
    assert size == len(body)
    return body


def test_a_body_in_chunks_arrives_also_behind_a_redirect(port: int) -> None:
    assert get(f"http://127.0.0.1:{port}/chunked") == b"abc"
    assert get(f"http://localhost:{port}/moved") == b"abc"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("/chunked-broken", "IncompleteRead"),
        ("/short", "broke off after 3 of 100|IncompleteRead"),
        ("/gone", "404"),
        ("/no-http", "BadStatusLine"),
        ("/nowhere", "302"),
        ("/round", "more than 5 times"),
    ],
)
def test_what_goes_wrong_on_the_way_may_be_tried_again(port: int, path: str, message: str) -> None:
    with pytest.raises(FetchFailed, match=message) as caught:
        get(f"http://127.0.0.1:{port}{path}")

    assert caught.value.is_recoverable


@pytest.mark.parametrize(
    ("url", "rules", "message"),
    [
        ("http://127.0.0.1:{port}/out", LOCAL, "'ftp'"),
        ("http://127.0.0.1:{port}/chunked", HttpRules(("https",)), r"artifact\.schemes"),
        ("http://127.0.0.1:{port}/chunked", HttpRules(("http",)), "allowed_networks"),
        ("http://localhost:{port}/chunked", HttpRules(("http",)), "allowed_networks"),
        ("http://[::ffff:127.0.0.1]:{port}/chunked", HttpRules(("http",)), "allowed_networks"),
        ("http://127.0.0.1:999999/", LOCAL, "impossible port"),
        ("http://127.0.0.1:{port}/a b", LOCAL, "cannot be asked for"),
    ],
)
def test_what_is_not_allowed_is_not_tried_again(port: int, url: str, rules: HttpRules, message: str) -> None:
    with pytest.raises(FetchFailed, match=message) as caught:
        get(url.format(port=port), rules)

    assert not caught.value.is_recoverable


def test_headers_cannot_smuggle_another_request(port: int) -> None:
    with pytest.raises(FetchFailed, match="cannot be asked for"):
        download(f"http://127.0.0.1:{port}/x", {"X": "a\r\nY: b"}, LOCAL, FetchLimits(), lambda _: None)


def test_nobody_there_is_weather() -> None:
    with pytest.raises(FetchFailed, match="cannot be read") as caught:
        get("http://127.0.0.1:1/x")

    assert caught.value.is_recoverable


def test_a_body_without_end_is_cut_off_at_the_limit(port: int) -> None:
    with pytest.raises(FetchFailed, match="http_max_size"):
        get(f"http://127.0.0.1:{port}/endless", download_bytes=100_000)


def test_a_certificate_that_nobody_signed_is_refused_unless_that_is_asked_for(tls_port: int) -> None:
    with pytest.raises(FetchFailed, match="CERTIFICATE_VERIFY_FAILED"):
        get(f"https://127.0.0.1:{tls_port}/chunked")

    assert get(f"https://127.0.0.1:{tls_port}/chunked", HttpRules(("https",), LOCAL.allowed_networks, True)) == b"abc"

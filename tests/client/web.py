"""A web server for tests: paths and what they answer, and what was asked for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Web:
    """A web server of one test: paths and what they answer."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.redirects: dict[str, str] = {}
        self.seen: list[tuple[str, dict[str, str]]] = []
        self.lies: dict[str, int] = {}
        """Lengths that are told in place of the true one."""
        self.stalls = threading.Event()
        web = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                path = self.path.partition("?")[0]
                web.seen.append((self.path, dict(self.headers)))
                if path in web.redirects:
                    self.send_response(302)
                    self.send_header("Location", web.redirects[path])
                    self.end_headers()
                elif path == "/stall":
                    self.send_response(200)
                    self.end_headers()
                    self.wfile.write(b"begun")
                    self.wfile.flush()
                    web.stalls.wait(30)
                elif path in web.files:
                    self.send_response(200)
                    self.send_header("Content-Length", str(web.lies.get(path, len(web.files[path]))))
                    self.end_headers()
                    self.wfile.write(web.files[path])
                else:
                    self.send_error(404)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"

    def asked(self) -> list[str]:
        return [path for path, _ in self.seen]


@contextmanager
def open_web() -> Iterator[Web]:
    web = Web()
    thread = threading.Thread(target=web.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield web
    finally:
        web.stalls.set()
        web.server.shutdown()
        web.server.server_close()
        thread.join()

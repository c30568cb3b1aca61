"""Job files from the web: fetched, bounded, refused."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from fedsched.rpc.methods.job import JOB_REGISTER, JobWriteReply
from fedsched.verbs.download import NotDownloaded, download
from tests.verbs.commands import fedsched

JOB = 'job "far" {\n  group "g" {\n    task "t" {\n      driver = "mock"\n    }\n  }\n}\n'


class _Pages(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        if self.path == "/moved":
            self.send_response(302)
            self.send_header("Location", "/far.hcl")
            self.end_headers()
        elif self.path == "/away":
            self.send_response(302)
            self.send_header("Location", "ftp://127.0.0.1/far.hcl")
            self.end_headers()
        elif self.path == "/far.hcl":
            self.send_response(200)
            self.end_headers()
            self.wfile.write(JOB.encode())
        else:
            self.send_error(404)

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), _Pages) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_a_job_is_run_from_its_address_and_its_text_is_kept(site: str) -> None:
    seen = fedsched(f"job run -detach {site}/moved", {JOB_REGISTER: lambda _: JobWriteReply()})

    assert seen.out == "Job registration successful\n"
    (request,) = seen.agent.requests(JOB_REGISTER)
    assert request.job.id == "far"
    assert request.submission.source == JOB


@pytest.mark.parametrize(("page", "words"), [("/none", "the server answers 404"), ("/away", "the server answers 302")])
def test_what_is_not_there_or_leads_elsewhere_is_refused(site: str, page: str, words: str) -> None:
    seen = fedsched(f"job validate {site}{page}")

    assert seen.code == 1
    assert words in seen.err


def test_what_is_too_large_or_cannot_be_reached_is_refused(site: str) -> None:
    with pytest.raises(NotDownloaded, match="larger than 10 bytes"):
        download(f"{site}/far.hcl", 10)
    with pytest.raises(NotDownloaded, match="cannot be fetched"):
        download("http://127.0.0.1:1/x", 10)

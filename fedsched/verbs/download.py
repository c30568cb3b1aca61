"""Job files from the web: `job run https://...`. Bounded in size and in silence; only http and https are followed."""

from __future__ import annotations

from typing import Final
from urllib.error import HTTPError, URLError
from urllib.request import (
    HTTPDefaultErrorHandler,
    HTTPErrorProcessor,
    HTTPHandler,
    HTTPRedirectHandler,
    HTTPSHandler,
    OpenerDirector,
    ProxyHandler,
    Request,
)

from fedsched.model.errors import BadRequest

SILENCE_S: Final = 15.0
"""Without a byte for so long the server counts as gone."""


class NotDownloaded(BadRequest):
    """A job file that could not be fetched."""

    code = "not_downloaded"


def download(address: str, bytes_max: int) -> bytes:
    """Fetch what is at an address. Proxies of the environment are used, redirects are followed (ten at most)."""
    try:
        with _opener().open(Request(address, headers={"User-Agent": "fedsched"}), timeout=SILENCE_S) as reply:
            data: bytes = reply.read(bytes_max + 1)
    except HTTPError as error:
        error.close()
        raise NotDownloaded(f"{address}: the server answers {error.code} {error.reason}") from None
    except (URLError, OSError, ValueError) as error:
        why = getattr(error, "reason", None) or error
        raise NotDownloaded(f"{address}: cannot be fetched: {why}", hint="is the address right?") from error
    if len(data) > bytes_max:
        raise NotDownloaded(f"{address}: larger than {bytes_max} bytes", hint="is this a job file?")
    return data


def _opener() -> OpenerDirector:
    """Only what is needed: the usual opener would also follow a redirect to ftp."""
    opener = OpenerDirector()
    for handler in (
        ProxyHandler(),
        HTTPHandler(),
        HTTPSHandler(),
        HTTPRedirectHandler(),
        HTTPDefaultErrorHandler(),
        HTTPErrorProcessor(),
    ):
        opener.add_handler(handler)
    return opener

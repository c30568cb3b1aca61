"""What an artifact's source says: where it is, how to get it, and what to do with it. Pure.

    https://host/path/app.tar.gz?checksum=sha256:9f86...        over HTTP
    https://host/all.zip//some/part                             only a part of an archive
    git::https://host/repository.git?ref=v1                     by a tool, if the host has it and the operator allows it
    file::local/app.tar.gz   or   local/app.tar.gz              something that is in the allocation's directory already

Options may stand in the source (as a query) or beside it; those beside it win. Options that are ours never reach the
other side.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit, urlunsplit

from fedsched.client.fetch.limits import FetchFailed

OUR_OPTIONS: Final = frozenset({"checksum", "archive", "filename", "ref", "depth", "sshkey"})
FORCED: Final = re.compile(r"^([A-Za-z0-9]+)::(.*)$", re.DOTALL)
HOSTING: Final = ("github.com/", "gitlab.com/", "bitbucket.org/", "git@")
DIGEST_HEX: Final = {"md5": 32, "sha1": 40, "sha256": 64, "sha512": 128}
SOURCE_CHARS_MAX: Final = 8192


@dataclass(frozen=True, slots=True)
class Source:
    scheme: str
    """`http`, `https`, `file`, `git`, or one that nobody here serves."""
    location: str
    """The URL without our options, or the path."""
    part: str
    """The part of the result that is wanted; empty: all."""
    file_name: str
    """What a single file is called."""
    options: Mapping[str, str]

    @property
    def shown(self) -> str:
        """Fit for events and logs: no password, no query (it may hold a signature)."""
        return shown(self.location)


def read_source(text: str, options: Mapping[str, str]) -> Source:
    """Take an (interpolated) source apart. `FetchFailed` says what is wrong with it."""
    text = text.strip()
    if not text or len(text) > SOURCE_CHARS_MAX or any(ord(char) < 32 or ord(char) == 127 for char in text):
        raise FetchFailed(f"the source {shown(text)[:200]!r} is empty, too long, or has control characters")
    forced, text = _forced(text)
    scheme = forced or _scheme(text)
    if scheme == "file":
        return _file_source(text, options)
    if scheme == "git" and "://" not in text:
        text = _git_url(text)
    url, part = _without_part(text)
    pieces = urlsplit(url)
    query = parse_qsl(pieces.query, keep_blank_values=True)
    merged = {**{key: value for key, value in query if key in OUR_OPTIONS}, **options}
    rest = urlencode([(key, value) for key, value in query if key not in OUR_OPTIONS])
    location = urlunsplit((pieces.scheme, pieces.netloc, pieces.path, rest, ""))
    if scheme in ("http", "https") and not pieces.hostname:
        raise FetchFailed(f"the source {shown(text)[:200]!r} names no host")
    return Source(scheme, location, part, _file_name(pieces.path, merged), merged)


def shown(location: str) -> str:
    """A location without what may be secret in it."""
    try:
        pieces = urlsplit(location)
        if not pieces.scheme or not pieces.netloc:
            return location.partition("?")[0]
        return urlunsplit((pieces.scheme, pieces.netloc.rpartition("@")[2], pieces.path, "", ""))
    except ValueError:
        return "(a source that is no URL)"


def read_checksum(text: str) -> tuple[str, str]:
    """`sha256:9f86...` as kind and hex, or `file:<where>`."""
    kind, colon, digest = text.strip().partition(":")
    if not colon:
        kinds = {length: kind for kind, length in DIGEST_HEX.items()}
        kind, digest = kinds.get(len(text.strip()), ""), text.strip()
    if kind == "file" and digest:
        return kind, digest
    if kind not in DIGEST_HEX or not re.fullmatch(rf"[0-9a-fA-F]{{{DIGEST_HEX[kind]}}}", digest):
        raise FetchFailed(
            f"the checksum {text[:160]!r} is none of {', '.join(DIGEST_HEX)} with its hex digits, or file:..."
        )
    return kind, digest.lower()


def checksum_from(listing: str, file_name: str) -> tuple[str, str]:
    """The checksum of one file out of a list of them (as `sha256sum` writes it, or BSD's `SHA256 (name) = ...`)."""
    kinds = {length: kind for kind, length in DIGEST_HEX.items()}
    lone = []
    for line in listing.splitlines():
        if match := re.fullmatch(r"\s*([A-Za-z0-9]+) \((.+)\) = ([0-9a-fA-F]+)\s*", line):
            digest, name = match[3], match[2]
        elif match := re.fullmatch(r"\s*([0-9a-fA-F]{32,128})(?:\s+\*?(.+?))?\s*", line):
            digest, name = match[1], match[2] or ""
        else:
            continue
        if len(digest) in kinds and posixpath.basename(name) == file_name:
            return kinds[len(digest)], digest.lower()
        if len(digest) in kinds and not name:
            lone.append((kinds[len(digest)], digest.lower()))
    if len(lone) == 1:
        return lone[0]
    raise FetchFailed(f"the checksum file has no checksum for {file_name[:200]!r}")


def _forced(text: str) -> tuple[str, str]:
    match = FORCED.match(text)
    return (match[1].lower(), match[2]) if match else ("", text)


def _scheme(text: str) -> str:
    head, separator, _ = text.partition("://")
    if separator and re.fullmatch(r"[A-Za-z][A-Za-z0-9+.-]*", head):
        return head.lower()
    return "git" if text.startswith(HOSTING) else "file"


def _git_url(text: str) -> str:
    """`github.com/a/b` and `git@host:a/b` as URLs."""
    if text.startswith("git@"):
        host, _, path = text.removeprefix("git@").partition(":")
        return f"ssh://git@{host}/{path}"
    return f"https://{text}"


def _file_source(text: str, options: Mapping[str, str]) -> Source:
    path, _, query = text.removeprefix("file://").partition("?")
    found = {key: value for key, value in parse_qsl(query, keep_blank_values=True) if key in OUR_OPTIONS}
    merged = {**found, **options}
    path, part = _without_part(path)
    return Source("file", path, part, _file_name(path, merged), merged)


def _without_part(text: str) -> tuple[str, str]:
    """`https://host/a.zip//part?x` as `https://host/a.zip?x` and `part`."""
    head, separator, rest = text.partition("://")
    if not separator:
        head, rest = "", text
    body, mark, query = rest.partition("?")
    body, slashes, part = body.partition("//")
    whole = f"{head}{separator}{body}{mark}{query}"
    return whole, part.strip("/") if slashes else ""


def _file_name(path: str, options: Mapping[str, str]) -> str:
    name = options.get("filename") or unquote(posixpath.basename(path.rstrip("/")))
    if name in ("", ".", "..") or "/" in name or "\0" in name or len(name.encode(errors="replace")) > 255:
        raise FetchFailed(
            f"the source gives no usable file name ({quote(name)[:200]!r}); say one with the option filename"
        )
    return name

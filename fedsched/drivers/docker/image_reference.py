"""Names of images, taken apart as engines do."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from fedsched.drivers.driver import DriverError

DEFAULT_REGISTRY: Final = "https://index.docker.io/v1/"
_REFERENCE = re.compile(
    r"(?P<repository>[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?(?::\d+(?=/))?(?:/[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?)*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9._-]{0,127}))?(?:@(?P<digest>[a-z0-9]+:[0-9a-f]{32,128}))?\Z"
)


class ImageReference(NamedTuple):
    repository: str
    tag: str
    digest: str = ""

    def __str__(self) -> str:
        return f"{self.repository}@{self.digest}" if self.digest else f"{self.repository}:{self.tag}"

    @property
    def pull_tag(self) -> str:
        """What the engine's `tag` parameter takes."""
        return self.digest or self.tag

    @property
    def moves(self) -> bool:
        """May the same name mean another image tomorrow? Then what is here is not trusted."""
        return not self.digest and self.tag == "latest"

    @property
    def registry(self) -> str:
        """The key of its registry in a file of credentials."""
        first, slash, _ = self.repository.partition("/")
        if slash and ("." in first or ":" in first or first == "localhost"):
            return first
        return DEFAULT_REGISTRY


def parse_reference(text: str) -> ImageReference:
    name = text.removeprefix("https://").removeprefix("http://")
    match = _REFERENCE.match(name) if len(name) <= 512 else None
    if match is None:
        raise DriverError(
            f"config.image = {text!r:.120} is not the name of an image",
            hint="such as redis:7 or host:5000/team/app:1.2",
        )
    tag = match["tag"] or ("" if match["digest"] else "latest")
    return ImageReference(match["repository"], tag, match["digest"] or "")

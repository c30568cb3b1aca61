"""What one look at the host brings to light, and what such a look is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

from fedsched.client.settings import ClientSettings
from fedsched.model.node import HostNetworkInfo, HostVolumeInfo
from fedsched.model.node_resources import NodeCPU, NodeDisk, NodeMemory, NodeNetwork, Processors


@dataclass(frozen=True, slots=True)
class Found:
    """The part of a node's record that one fingerprinter answers for; what is None is none of its business."""

    attributes: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[str, str] = field(default_factory=dict)
    cpu: NodeCPU | None = None
    processors: Processors | None = None
    memory: NodeMemory | None = None
    disk: NodeDisk | None = None
    networks: tuple[NodeNetwork, ...] | None = None
    group_networks: tuple[NodeNetwork, ...] | None = None
    """Modes beside the host's own that groups can have."""
    host_networks: Mapping[str, HostNetworkInfo] | None = None
    host_volumes: Mapping[str, HostVolumeInfo] | None = None


@dataclass(frozen=True, slots=True)
class Host:
    """What a fingerprinter looks at."""

    settings: ClientSettings
    root: Path = Path("/")
    """Where /proc, /sys and /etc are; a test has its own."""
    version: str = ""
    """Of this agent."""

    def text(self, path: str) -> str:
        """The content of a small file, without the line's end; empty if it is not there or may not be read."""
        try:
            return (self.root / path.lstrip("/")).read_text(errors="replace").strip()
        except OSError:
            return ""


class Fingerprinter:
    """Looks at one thing. `find` blocks and is called in a thread; a failure is logged and harms no other."""

    name: ClassVar[str]
    period_s: ClassVar[float] = 0.0
    """How often to look again; 0: what it finds does not change while the agent runs."""
    is_reloadable: ClassVar[bool] = False
    """Whether to look again when the settings are read anew."""

    def find(self, host: Host) -> Found:
        raise NotImplementedError


def numbers_in(text: str) -> tuple[int, ...]:
    """The numbers of a list such as `0-2,7`; what is no number is left out."""
    found: set[int] = set()
    for part in text.replace(" ", "").split(","):
        low, dash, high = part.partition("-")
        if low.isdigit() and (not dash or high.isdigit()):
            first, last = int(low), int(high or low)
            if last - first <= 65_536:
                found.update(range(first, last + 1))
    return tuple(sorted(found))

"""Host volumes: whether a node offers what a group asks for.

A *static* volume is a line in the client's configuration; a *dynamic* one was made through the servers and has a record
of its own, with the ways in which it may be used. Volumes are never part of a node's class: what one node has, another
that is otherwise alike has not.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final

from fedsched.model.node import HostVolumeInfo, Node
from fedsched.model.volume import HostVolume, HostVolumeState, VolumeRequest
from fedsched.scheduler.special import HOST_VOLUME, SINGLE_WRITER, HeldVolume, volume_name

MISSING_VOLUMES: Final = "missing compatible host volumes"
WRITER: Final = "single-node-writer"
READER: Final = "single-node-reader-only"
FILE_SYSTEM: Final = "file-system"

FindVolume = Callable[[str], HostVolume | None]
"""Gives the dynamic volume with an id, if it exists and is of the job's namespace."""


def no_volumes(_volume_id: str) -> HostVolume | None:
    """For states without dynamic volumes."""
    return None


def offers_volumes(
    node: Node,
    requests: Iterable[VolumeRequest],
    *,
    name_index: int | None = 0,
    find: FindVolume = no_volumes,
    written: Collection[HeldVolume] = (),
    claimed: Collection[str] = (),
) -> bool:
    """Whether the node has every host volume among the requests, usable in the way asked for.

    Without a name index, one volume of the right form must be there for a volume of each allocation; which allocation
    finds its own is then asked when its turn comes.

    `written` are the volumes that other groups' allocations on the node write to; `claimed` the ids of the volumes that
    the group's sticky claims still wait for (none: any volume will do).
    """
    asked = (request for request in requests if request.type == HOST_VOLUME)
    return all(
        _offers_any(node, request)
        if name_index is None and request.per_alloc
        else _offers(node, request, name_index or 0, find, written, claimed)
        for request in asked
    )


def access_of(request: VolumeRequest) -> tuple[str, str]:
    """Give the access and attachment modes that a request means."""
    access = request.access_mode or (READER if request.read_only else WRITER)
    return access, request.attachment_mode or FILE_SYSTEM


def writers_conflict(held: Iterable[HeldVolume]) -> bool:
    """Whether a volume that someone must write alone is written by somebody else too."""
    writers: dict[str, tuple[int, bool]] = {}
    for volume in held:
        count, is_exclusive = writers.get(volume.name, (0, False))
        writers[volume.name] = (count + 1, is_exclusive or volume.is_exclusive)
    return any(count > 1 and is_exclusive for count, is_exclusive in writers.values())


def _offers(
    node: Node,
    request: VolumeRequest,
    name_index: int,
    find: FindVolume,
    written: Collection[HeldVolume],
    claimed: Collection[str],
) -> bool:
    name = volume_name(request, name_index)
    offered = node.host_volumes.get(name)
    if offered is None:
        return False
    if not offered.id:
        return _static_will_do(offered, request)
    volume = find(offered.id)
    if volume is None or not _is_usable(volume, request) or not _may_write(request, name, written):
        return False
    return not request.sticky or not claimed or volume.id in claimed


def _offers_any(node: Node, request: VolumeRequest) -> bool:
    return any(name.startswith(f"{request.source}[") and name.endswith("]") for name in node.host_volumes)


def _static_will_do(offered: HostVolumeInfo, request: VolumeRequest) -> bool:
    return not request.sticky and (request.read_only or not offered.read_only)


def _is_usable(volume: HostVolume, request: VolumeRequest) -> bool:
    access, attachment = access_of(request)
    if volume.state is not HostVolumeState.READY:
        return False
    if request.read_only != (access == READER) and access in (READER, WRITER):
        return False  # a reader that wants to write, or a writer that must not
    return any(
        able.access_mode == access and able.attachment_mode == attachment for able in volume.requested_capabilities
    )


def _may_write(request: VolumeRequest, name: str, written: Collection[HeldVolume]) -> bool:
    """One writer that must be alone keeps all others off, and is kept off by any."""
    if request.read_only:
        return True
    others = [held for held in written if held.name == name]
    return not any(held.is_exclusive or request.access_mode == SINGLE_WRITER for held in others)

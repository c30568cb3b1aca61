"""How far each group of a deployment has come: the part that changes with every placement and every health report.

Kept apart from the encoded deployment, in a few short values per group, because these numbers move far more often than
anything else about a deployment and a whole record costs many times as much to read and write.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Final

import msgspec

from fedsched.codec import STORED_LIMITS, CodecError, dumps, from_builtins, loads
from fedsched.model.deployment import DeploymentState
from fedsched.model.ids import uuid_bytes, uuid_text
from fedsched.state.fields import Count, Name

NS: Final = 1_000_000_000
GROUPS_MAX: Final = 10_000
Whole = Annotated[int, msgspec.Meta(ge=-(1 << 62), le=1 << 62)]


class GroupProgress(msgspec.Struct, array_like=True, frozen=True, kw_only=True, gc=False):
    """One group. Stored as a list: fields are only ever added at the end."""

    name: Name
    desired_total: Whole = 0
    desired_canaries: Whole = 0
    placed: Whole = 0
    healthy: Whole = 0
    unhealthy: Whole = 0
    progress_deadline_ns: Count = 0
    require_progress_by_ns: Count = 0
    promoted: bool = False
    auto_revert: bool = False
    auto_promote: bool = False
    canaries: bytes = b""
    """Ids of the canaries placed, 16 bytes each."""

    @property
    def canary_ids(self) -> tuple[bytes, ...]:
        return tuple(self.canaries[at : at + 16] for at in range(0, len(self.canaries), 16))

    def state(self) -> DeploymentState:
        """The record that people and schedulers know."""
        return DeploymentState(
            auto_revert=self.auto_revert,
            auto_promote=self.auto_promote,
            progress_deadline_s=self.progress_deadline_ns / NS,
            require_progress_by_ns=self.require_progress_by_ns,
            promoted=self.promoted,
            placed_canaries=tuple(uuid_text(one) for one in self.canary_ids),
            desired_canaries=self.desired_canaries,
            desired_total=self.desired_total,
            placed_allocs=self.placed,
            healthy_allocs=self.healthy,
            unhealthy_allocs=self.unhealthy,
        )


def progress_of(name: str, state: DeploymentState) -> GroupProgress:
    """The stored form of a group's record."""
    return GroupProgress(
        name=name,
        desired_total=state.desired_total,
        desired_canaries=state.desired_canaries,
        placed=state.placed_allocs,
        healthy=state.healthy_allocs,
        unhealthy=state.unhealthy_allocs,
        progress_deadline_ns=round(state.progress_deadline_s * NS),
        require_progress_by_ns=state.require_progress_by_ns,
        promoted=state.promoted,
        auto_revert=state.auto_revert,
        auto_promote=state.auto_promote,
        canaries=b"".join(uuid_bytes(one) for one in state.placed_canaries),
    )


def pack_groups(groups: Iterable[GroupProgress]) -> bytes:
    """All groups of a deployment, by name; nothing for none."""
    listed = sorted(groups, key=lambda one: one.name)
    return dumps([msgspec.to_builtins(one, builtin_types=(bytes,)) for one in listed]) if listed else b""


def unpack_groups(data: bytes) -> dict[str, GroupProgress]:
    """The groups by name; `CodecError` for bytes that no `pack_groups` made."""
    if not data:
        return {}
    found = from_builtins(loads(data, STORED_LIMITS), list[GroupProgress])
    if len(found) > GROUPS_MAX or any(len(one.canaries) % 16 for one in found):
        raise CodecError("a deployment's groups are out of shape")
    return {one.name: one for one in found}


def pack_states(states: Mapping[str, DeploymentState]) -> bytes:
    return pack_groups(progress_of(name, state) for name, state in states.items())


def kept(wanted: GroupProgress, known: GroupProgress | None) -> GroupProgress:
    """A group as a plan has it, with what placements, clients and people have made of the stored one meanwhile."""
    if known is None:
        return wanted
    canaries = dict.fromkeys((*known.canary_ids, *wanted.canary_ids))
    return msgspec.structs.replace(
        wanted,
        placed=known.placed,
        healthy=known.healthy,
        unhealthy=known.unhealthy,
        require_progress_by_ns=max(wanted.require_progress_by_ns, known.require_progress_by_ns),
        promoted=wanted.promoted or known.promoted,
        canaries=b"".join(canaries),
    )

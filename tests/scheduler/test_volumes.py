"""Host volumes: static and dynamic, who may write, and sticky claims."""

from __future__ import annotations

from typing import Any

import pytest

from fedsched.model.node import HostVolumeInfo, Node
from fedsched.model.volume import HostVolume, HostVolumeCapability, HostVolumeState, VolumeRequest
from fedsched.scheduler.special import HeldVolume
from fedsched.scheduler.volumes import offers_volumes, writers_conflict
from tests.builders import a_node

MODES = ("single-node-writer", "single-node-reader-only", "single-node-single-writer", "single-node-multi-writer")


def wants(**fields: Any) -> VolumeRequest:
    fields.setdefault("source", "data")
    return VolumeRequest(name="v", type="host", **fields)


def with_static(*, read_only: bool = False) -> Node:
    return a_node(host_volumes={"data": HostVolumeInfo(name="data", path="/data", read_only=read_only)})


def with_dynamic(name: str = "data") -> Node:
    return a_node(host_volumes={name: HostVolumeInfo(name=name, path="/data", id="vol-1")})


def a_volume(*modes: str, attachment: str = "file-system", **fields: Any) -> HostVolume:
    able = tuple(HostVolumeCapability(access_mode=mode, attachment_mode=attachment) for mode in modes or MODES)
    fields.setdefault("state", HostVolumeState.READY)
    return HostVolume(id="vol-1", name="data", requested_capabilities=able, **fields)


def dynamic_will_do(request: VolumeRequest, volume: HostVolume | None, **more: Any) -> bool:
    return offers_volumes(with_dynamic(), [request], find=lambda _id: volume, **more)


def test_a_volume_of_that_name_must_be_on_the_node() -> None:
    assert offers_volumes(with_static(), [wants()])
    assert not offers_volumes(with_static(), [wants(source="other")])
    assert not offers_volumes(a_node(), [wants()])
    assert not offers_volumes(with_static(), [wants(), wants(source="other")])


def test_a_volume_of_each_allocation_has_its_index_in_the_name() -> None:
    node = a_node(host_volumes={"data[2]": HostVolumeInfo(name="data[2]")})

    assert offers_volumes(node, [wants(per_alloc=True)], name_index=2)
    assert not offers_volumes(node, [wants(per_alloc=True)], name_index=1)
    assert not offers_volumes(node, [wants()], name_index=2)


def test_before_an_allocation_has_its_index_any_volume_of_that_form_will_do() -> None:
    asked = [wants(per_alloc=True)]

    assert offers_volumes(a_node(host_volumes={"data[7]": HostVolumeInfo(name="data[7]")}), asked, name_index=None)
    assert not offers_volumes(with_static(), asked, name_index=None)
    assert not offers_volumes(a_node(host_volumes={"d[7]": HostVolumeInfo(name="d[7]")}), asked, name_index=None)
    assert not offers_volumes(a_node(host_volumes={"data[7": HostVolumeInfo(name="data[7")}), asked, name_index=None)


def test_writing_needs_a_static_volume_that_is_not_read_only() -> None:
    assert not offers_volumes(with_static(read_only=True), [wants()])
    assert offers_volumes(with_static(read_only=True), [wants(read_only=True)])
    assert offers_volumes(with_static(), [wants(read_only=True)])


def test_sticky_never_matches_a_static_volume() -> None:
    assert not offers_volumes(with_static(), [wants(sticky=True)])


def test_other_types_of_volume_are_not_looked_at_here() -> None:
    assert offers_volumes(a_node(), [VolumeRequest(name="v", type="csi", source="data")])


def test_a_dynamic_volume_must_be_known_and_ready() -> None:
    assert dynamic_will_do(wants(), a_volume())
    assert not dynamic_will_do(wants(), None)
    assert not offers_volumes(with_dynamic(), [wants()])
    for state in (HostVolumeState.PENDING, HostVolumeState.UNAVAILABLE):
        assert not dynamic_will_do(wants(), a_volume(state=state))


def test_the_default_way_is_one_writer_or_one_reader_of_a_file_system() -> None:
    assert dynamic_will_do(wants(), a_volume("single-node-writer"))
    assert not dynamic_will_do(wants(), a_volume("single-node-reader-only"))
    assert dynamic_will_do(wants(read_only=True), a_volume("single-node-reader-only"))
    assert not dynamic_will_do(wants(read_only=True), a_volume("single-node-writer"))
    assert not dynamic_will_do(wants(), a_volume("single-node-writer", attachment="block-device"))
    assert dynamic_will_do(wants(attachment_mode="block-device"), a_volume(attachment="block-device"))


@pytest.mark.parametrize("mode", MODES)
def test_the_asked_way_must_be_among_the_volumes_capabilities(mode: str) -> None:
    read_only = mode == "single-node-reader-only"

    assert dynamic_will_do(wants(access_mode=mode, read_only=read_only), a_volume(mode))
    others = [other for other in MODES if other != mode]
    assert not dynamic_will_do(wants(access_mode=mode, read_only=read_only), a_volume(*others))


def test_a_reader_may_not_write_and_a_writer_not_only_read() -> None:
    assert not dynamic_will_do(wants(access_mode="single-node-reader-only"), a_volume())
    assert not dynamic_will_do(wants(access_mode="single-node-writer", read_only=True), a_volume())
    assert dynamic_will_do(wants(access_mode="single-node-multi-writer", read_only=True), a_volume())


def test_a_single_writer_keeps_every_other_writer_off() -> None:
    alone = wants(access_mode="single-node-single-writer")

    assert dynamic_will_do(alone, a_volume())
    assert not dynamic_will_do(alone, a_volume(), written=[HeldVolume("data", False)])
    assert not dynamic_will_do(alone, a_volume(), written=[HeldVolume("data", True)])
    assert not dynamic_will_do(wants(), a_volume(), written=[HeldVolume("data", True)])
    assert dynamic_will_do(wants(), a_volume(), written=[HeldVolume("data", False)])
    assert dynamic_will_do(alone, a_volume(), written=[HeldVolume("other", True)])
    assert dynamic_will_do(wants(read_only=True), a_volume(), written=[HeldVolume("data", True)])


def test_claims_pin_a_sticky_group_to_its_volumes() -> None:
    sticky = wants(sticky=True)

    assert dynamic_will_do(sticky, a_volume())
    assert dynamic_will_do(sticky, a_volume(), claimed={"vol-1"})
    assert not dynamic_will_do(sticky, a_volume(), claimed={"vol-9"})
    assert dynamic_will_do(wants(), a_volume(), claimed={"vol-9"})


def test_writers_conflict_when_one_of_several_must_be_alone() -> None:
    shared, alone = HeldVolume("data", False), HeldVolume("data", True)

    assert not writers_conflict([])
    assert not writers_conflict([alone])
    assert not writers_conflict([shared, shared])
    assert not writers_conflict([alone, HeldVolume("other", True)])
    assert writers_conflict([shared, alone])
    assert writers_conflict([alone, shared])
    assert writers_conflict([alone, alone])

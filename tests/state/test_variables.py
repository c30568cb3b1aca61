"""Variables: written, checked against what was expected, and forgotten."""

from __future__ import annotations

from typing import Any

from fedsched.state.image import Restorer, save
from fedsched.state.tables.namespaces import NamespaceDelete, NamespaceUpsert
from fedsched.state.tables.variables import VariableDelete, VariablePut
from tests.state.worlds import SECOND, World


def put(world: World, path: str = "app", sealed: bytes = b"x", **fields: Any) -> Any:
    return world.do(VariablePut(**{"namespace": "default", "path": path, "sealed": sealed} | fields)).result


def paths(world: World, prefix: str = "") -> list[str]:
    return [row.path for row in world.store.variables.under("default", prefix)]


def test_a_variable_keeps_when_it_was_made_and_when_it_last_changed() -> None:
    world = World()
    made = put(world).index
    changed = put(world, sealed=b"y").index

    row = world.store.variables.get("default", "app")
    assert row is not None
    assert (row.sealed, row.create_index, row.modify_index) == (b"y", made, changed)
    assert (row.create_time_ns, row.modify_time_ns) == (made * SECOND, changed * SECOND)


def test_check_and_set_lets_the_first_of_two_writers_through() -> None:
    world = World()
    first = put(world, check_and_set=True, check_index=0)
    assert first.is_done
    refused = put(world, sealed=b"y", check_and_set=True, check_index=0)

    assert (refused.code, str(first.index) in refused.message) == ("conflict", True)
    assert put(world, sealed=b"y", check_and_set=True, check_index=first.index).is_done


def test_deleting_what_is_not_there_is_done_already() -> None:
    world = World()
    index = put(world).index

    held = VariableDelete(namespace="default", path="app", check_and_set=True, check_index=index + 7)
    assert world.do(held).result.code == "conflict"
    assert world.do(VariableDelete(namespace="default", path="app")).result.value == {"removed": True}
    assert world.do(VariableDelete(namespace="default", path="app")).result.value == {"removed": False}


def test_a_namespace_must_be_there_and_stays_while_it_holds_variables() -> None:
    world = World()
    assert put(world, namespace="prod").code == "not_found"
    world.do(NamespaceUpsert(name="prod"))
    assert put(world, namespace="prod").is_done

    refused = world.do(NamespaceDelete(name="prod")).result
    assert (refused.code, "'app'" in refused.message) == ("conflict", True)
    world.do(VariableDelete(namespace="prod", path="app"))
    assert world.do(NamespaceDelete(name="prod")).result.is_done


def test_variables_are_listed_under_a_prefix_of_their_path() -> None:
    world = World()
    for path in ("b", "a/x", "a/y", "ab", "a"):
        put(world, path)
    put(world, "a/z", namespace="nowhere")

    assert paths(world) == ["a", "a/x", "a/y", "ab", "b"]
    assert paths(world, "a/") == ["a/x", "a/y"]
    assert paths(world, "c") == []


def test_variables_survive_an_image_and_stay_in_a_snapshot() -> None:
    world = World()
    put(world)
    snapshot = world.store.snapshot()
    restorer = Restorer()
    for chunk in save(snapshot):
        restorer.feed(chunk)
    world.do(VariableDelete(namespace="default", path="app"))

    assert list(restorer.finish().variables.rows.scan()) == list(snapshot.variables.rows.scan())
    assert paths(world) == []

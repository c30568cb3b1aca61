"""Functions of maps and objects, and those that take collections of any kind."""

from __future__ import annotations

from fedsched.jobspec.context import ArgumentFailed, FunctionFailed
from fedsched.jobspec.convert import Mismatch, convert
from fedsched.jobspec.functions.registry import function, nullable
from fedsched.jobspec.types import ANY, STRING, Kind, list_of
from fedsched.jobspec.values import Value, make_list, make_map, make_object, make_tuple, number, string


@function("index", takes=(("collection", ANY), ("key", ANY)))
def index(collection: Value, key: Value) -> Value:
    """The element at a key or number (which other languages write with brackets)."""
    if collection.kind is Kind.MAP:
        if key.kind is not Kind.STRING:
            raise FunctionFailed("the key of a map is a string")
        if key.text not in collection.entries:
            raise FunctionFailed(f"there is no {key.text!r}")
        return collection.entries[key.text]
    if collection.kind not in (Kind.LIST, Kind.TUPLE):
        raise FunctionFailed("a list, tuple or map is needed")
    if key.kind is not Kind.NUMBER:
        raise FunctionFailed("the key of a list or tuple is a number")
    at = key.number.to_int()
    if at is None or not 0 <= at < len(collection.elements):
        raise FunctionFailed(f"there is no element {key.number.text()[:40]}")
    return collection.elements[at]


@function("keys", takes=(("inputMap", ANY),))
def keys(mapping: Value) -> Value:
    names = [string(key) for key in _mapping(mapping).entries]
    return make_list(STRING, names) if mapping.kind is Kind.MAP else make_tuple(names)


@function("values", takes=(("mapping", ANY),))
def values(mapping: Value) -> Value:
    found = list(_mapping(mapping).entries.values())
    return make_list(mapping.type.of, found) if mapping.kind is Kind.MAP else make_tuple(found)


@function("length", takes=(("collection", ANY),))
def length(collection: Value) -> Value:
    if collection.is_sequence:
        return number(len(collection.elements))
    if collection.kind is Kind.MAP:
        return number(len(collection.entries))
    raise FunctionFailed(f"a list, tuple, set or map is needed, not a {collection.type}")


@function("lookup", takes=(("inputMap", ANY), ("key", STRING), ("default", ANY)))
def lookup(mapping: Value, key: Value, default: Value) -> Value:
    found = _mapping(mapping).entries.get(key.text)
    if found is not None:
        return found
    if mapping.kind is Kind.MAP:
        try:
            return convert(default, mapping.type.of)
        except Mismatch as error:
            raise ArgumentFailed(2, str(error)) from None
    return default


@function("merge", rest=nullable("maps", ANY))
def merge(*mappings: Value) -> Value:
    """Later ones win; nulls are passed over. Maps of one type stay a map."""
    present = [mapping for mapping in mappings if not mapping.is_null]
    entries: dict[str, Value] = {}
    for mapping in present:
        if not mapping.is_mapping:
            raise FunctionFailed(f"all arguments must be maps or objects, not a {mapping.type}")
        entries.update(mapping.entries)
    types = {mapping.type for mapping in present}
    if len(types) == 1 and present[0].kind is Kind.MAP:
        return make_map(present[0].type.of, entries)
    return make_object(entries)


@function("zipmap", takes=(("keys", list_of(STRING)), ("values", ANY)))
def zipmap(names: Value, items: Value) -> Value:
    if items.kind not in (Kind.LIST, Kind.TUPLE):
        raise ArgumentFailed(1, f"a list or tuple is needed, not a {items.type}")
    if len(names.elements) != len(items.elements):
        raise FunctionFailed(f"{len(names.elements)} keys do not fit {len(items.elements)} values")
    entries: dict[str, Value] = {}
    for at, (name, item) in enumerate(zip(names.elements, items.elements, strict=True)):
        if name.is_null:
            raise FunctionFailed(f"key {at} is null")
        entries[name.text] = item
    return make_map(items.type.of, entries) if items.kind is Kind.LIST else make_object(entries)


def _mapping(value: Value) -> Value:
    if not value.is_mapping:
        raise FunctionFailed(f"a map or object is needed, not a {value.type}")
    return value

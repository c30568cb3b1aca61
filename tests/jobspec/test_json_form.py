"""Job files in HCL's JSON form."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fedsched.jobspec import dynamic, evaluate
from fedsched.jobspec.load import Loaded, job_source
from fedsched.jobspec.problems import JobfileProblems
from fedsched.jobspec.tree import Block


def _loaded(job: dict[str, Any], **top: Any) -> Loaded:
    return job_source(json.dumps({"job": {"j": job}, **top}), "j.json")


def _plain(loaded: Loaded, block: Block, name: str) -> Any:
    return evaluate.value(block.body.attributes[name].expr, block.context or loaded.context).to_python()


def test_names_of_blocks_become_blocks_and_the_rest_attributes() -> None:
    loaded = _loaded(
        {"//": "note", "type": "batch", "group": {"g": {"count": 2, "network": [{"port": {"http": {}}}, {}]}}}
    )
    group = loaded.job.body.blocks[0]

    assert loaded.job.labels[0].text == "j"
    assert list(loaded.job.body.attributes) == ["type"]
    assert (group.type, group.labels[0].text) == ("group", "g")
    assert [block.type for block in group.body.blocks] == ["network", "network"]
    assert group.body.blocks[0].body.blocks[0].labels[0].text == "http"


def test_a_name_that_is_a_block_elsewhere_may_be_an_attribute() -> None:
    loaded = _loaded({"region": "eu", "group": [{"a": {}}, {"b": {}}]})

    assert _plain(loaded, loaded.job, "region") == "eu"
    assert [block.labels[0].text for block in loaded.job.body.blocks] == ["a", "b"]


def test_texts_are_templates_and_keys_too() -> None:
    loaded = _loaded(
        {"meta": {"a": "${upper(var.x)}-${NOMAD_Y}", "${var.x}": 1, "n": [1.5, True, None], "e": 'é\n\t"\\\u20ac😀'}},
        variable={"x": {"type": "string", "default": "v"}},
        locals={"l": 1},
    )

    assert _plain(loaded, loaded.job, "meta") == {
        "a": "V-${NOMAD_Y}",
        "v": 1,
        "n": [1.5, True, None],
        "e": 'é\n\t"\\\u20ac😀',
    }


def test_dynamic_blocks_work() -> None:
    content = {"content": {"port": "${it.value}"}, "for_each": [1, 2], "iterator": "it"}
    loaded = _loaded({"group": {"g": {"dynamic": {"service": content}}}})

    made = dynamic.expand(loaded.job.body.blocks[0].body, loaded.context).blocks

    assert [_plain(loaded, block, "port") for block in made] == [1, 2]


def test_validations_hold_expressions() -> None:
    rule = {"condition": "${var.x > 1}", "error_message": "small"}
    loaded = _loaded({}, variable={"x": {"default": 5, "validation": {**rule, "condition": "var.x > 1"}}})

    assert loaded.context.variables["x"].to_python() == 5


def test_problems_point_into_the_json() -> None:
    text = '{"job": {"j": {\n  "meta": {"a": "x ${nope(}"}\n}}}'

    with pytest.raises(JobfileProblems) as caught:
        job_source(text, "j.json")

    span = caught.value.problems[0].span
    assert span is not None
    assert (span.first.line, span.first.column) == (2, 27)
    assert '"meta"' in caught.value.render()


def test_values_point_into_the_json() -> None:
    text = '{"job": {"j": {\n  "type": "x${var.nope}"\n}}}'
    loaded = job_source(text, "j.json")

    with pytest.raises(JobfileProblems) as caught:
        evaluate.value(loaded.job.body.attributes["type"].expr, loaded.context)

    assert str(caught.value).startswith("j.json:2:18: No such attribute")


@pytest.mark.parametrize(
    ("text", "words", "column"),
    [
        ('{"a": }', "JSON value expected", 7),
        ('{"a": 1 "b": 2}', "Comma expected", 9),
        ('{"a" 1}', "Colon expected", 6),
        ("{a: 1}", "Name expected", 2),
        ('{"a": 1,}', "Name expected", 9),
        ('{"a": [1,]}', "JSON value expected", 10),
        ('{"a": yes}', "Unknown word", 7),
        ('{"a": "x', "Invalid text", 7),
        ('{"a": "\\q"}', "Invalid escape", 7),
        ('{"a": 1} x', "Extra text", 10),
        ('{"a": 1, "a": 2}', "set twice", 10),
        ('{"a": 1e99999}', "Invalid number", 7),
        ('{"job": {"j": 5}}', "Object expected", 15),
        ('{"a": "\\ud83d\\ude00${"}', "", 0),
        ('{"variable": {"x": {"type": "list("}}}', "", 0),
    ],
)
def test_wrong_json_is_refused_at_its_place(text: str, words: str, column: int) -> None:
    with pytest.raises(JobfileProblems) as caught:
        job_source(text, "j.json")

    assert words in caught.value.problems[0].message
    span = caught.value.problems[0].span
    assert span is not None
    if column:
        assert span.first.column == column


def test_halves_of_characters_are_replaced() -> None:
    loaded = job_source(
        '{"job": {"j": {"meta": {"a": "\\ud800", "b": "\\ud83d\\ude00", "c": "\\u0041\\udc00"}}}}', "j.json"
    )

    assert _plain(loaded, loaded.job, "meta") == {"a": "\ufffd", "b": "\U0001f600", "c": "A\ufffd"}

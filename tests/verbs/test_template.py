from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsched.verbs.template import BadTemplate, render

JOB = {
    "ID": "web",
    "Stop": False,
    "Priority": 50,
    "Meta": {"b": "2", "a": "1"},
    "Datacenters": ["dc1", "dc2"],
    "TaskGroups": [{"Name": "front", "Count": 2}, {"Name": "back", "Count": 1}],
    "Periodic": None,
    "Score": 0.5,
}


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("plain", "plain"),
        ("{{.ID}} {{.Priority}} {{.Stop}} {{.Periodic}}", "web 50 false <nil>"),
        ("{{ .Periodic.Spec }}", "<nil>"),
        ("{{.Datacenters}} {{.Meta}}", "[dc1 dc2] map[a:1 b:2]"),
        ("{{range .TaskGroups}}{{.Name}}={{.Count}};{{end}}", "front=2;back=1;"),
        ("{{range $i, $g := .TaskGroups}}{{$i}}{{$g.Name}}{{$.ID}} {{end}}", "0frontweb 1backweb "),
        ("{{range $k, $v := .Meta}}{{$k}}{{$v}}{{end}}", "a1b2"),
        ("{{range .Periodic}}x{{else}}none{{end}}", "none"),
        ("{{if .Stop}}stopped{{else if eq .Priority 50}}fifty{{else}}other{{end}}", "fifty"),
        ("{{if and .ID (not .Stop)}}yes{{end}}", "yes"),
        ("{{if or .Stop .Periodic}}yes{{else}}no{{end}}", "no"),
        ("{{with .Meta}}{{.a}}{{end}}{{with .Periodic}}x{{else}}-{{end}}", "1-"),
        ("{{len .TaskGroups}} {{.ID | len}}", "2 3"),
        ('{{join .Datacenters ","}}', "dc1,dc2"),
        ('{{.ID | printf "%-5s|%5s|%q|" .ID .ID}}', 'web  |  web|"web"|'),
        ('{{printf "%05d %x %X" 42 255}}', "00042 ff %X"),
        ('{{printf "%.2f %g %t %% %T %x" .Score .Score .Stop .ID .ID}}', "0.50 0.5 false % string 776562"),
        ("{{index .Datacenters 1}} {{index .Meta `a`}} {{slice .ID 1 2}}", "dc2 1 e"),
        ("{{$x := .ID}}{{$x}}{{/* nothing */}}", "web"),
        ("a  {{- .ID -}}  b", "awebb"),
        ('{{print "a\\n" 1}}{{println true .ID}}', "a\n1true web\n"),
        (
            "{{if lt 1 2}}a{{end}}{{if le 2 2}}b{{end}}{{if gt 2 1}}c{{end}}{{if ge 1 2}}d{{end}}{{if ne 1 2}}e{{end}}",
            "abce",
        ),
        ("{{}}", ""),
        ("{{true}} {{1.5}} {{-2}}", "true 1.5 -2"),
    ],
)
def test_what_the_subset_can_do(template: str, expected: str) -> None:
    assert render(template, JOB) == expected


def test_a_list_can_be_the_object() -> None:
    assert render("{{range .}}{{.ID}} {{end}}", [{"ID": "a"}, {"ID": "b"}]) == "a b "


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{{.Id}}", "no field 'Id' in .Id"),
        ("{{.ID.x}}", "no field 'x' in .ID.x"),
        ("{{if .ID}}", "`if` has no end"),
        ("{{end}}", "an `end` that nothing opened"),
        ("{{.ID", "without its }}"),
        ("{{nope .ID}}", "no function 'nope'"),
        ("{{$x}}", r"no variable \$x"),
        ("{{range .ID}}{{end}}", "range needs a list or a map"),
        ("{{.ID .ID}}", "it is no function"),
        ("{{.ID |}}", "leads nowhere"),
        ("{{(.ID}}", r"without its \)"),
        ("{{len 5}}", "template: len"),
        ('{{printf "%d"}}', "wants more values"),
        ("{{.ID ?}}", "where nothing fits"),
        ("{{len |}}", "template: len"),
        ("{{print )}}", "where a value belongs"),
        ("{{if 1}}" * 60, "nested deeper"),
    ],
)
def test_mistakes_are_named(template: str, message: str) -> None:
    with pytest.raises(BadTemplate, match=message):
        render(template, JOB)


@given(st.text(alphabet='{}.$ |()IDrangeifend"`:=-x1,%', max_size=40))
def test_any_template_renders_or_is_refused(template: str) -> None:
    with contextlib.suppress(BadTemplate):
        assert isinstance(render(template, JOB), str)

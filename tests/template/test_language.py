"""The language of templates: what is read, what it renders, and what is refused where."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedsched.model.service import ServiceRegistration
from fedsched.model.variable import Variable, VariableMetadata
from fedsched.template.data import DataKind, Dependency, Inputs
from fedsched.template.errors import TemplateError, TooMuch, Wrong
from fedsched.template.render import KNOWN, Rendered, compile_template
from fedsched.template.values import Budget

NOW_NS = 1_700_000_000 * 10**9
ENV = {"PORT": "80", "EMPTY": "", "node.datacenter": "dc1", "attr.kernel.name": "linux", "meta.rack": "r7"}


def a_service(number: int, *tags: str) -> ServiceRegistration:
    return ServiceRegistration(id=f"s{number}", service_name="web", address=f"10.0.0.{number}", port=8000, tags=tags)


FETCHED: dict[Dependency, Any] = {
    Dependency(DataKind.VARIABLE, "app"): Variable(path="app", items={"user": "me", "pass": "x y"}, modify_index=9),
    Dependency(DataKind.VARIABLE, "gone"): None,
    Dependency(DataKind.VARIABLES, "a"): [VariableMetadata(path="app"), VariableMetadata(path="app/db")],
    Dependency(DataKind.VARIABLES, "none"): [],
    Dependency(DataKind.SERVICE, "web"): [a_service(1, "blue", "v1"), a_service(2, "green")],
    Dependency(DataKind.SERVICE, "web", "1|me"): [a_service(2, "green")],
    Dependency(DataKind.SERVICE, "nobody"): [],
    Dependency(DataKind.SERVICES): [("web", ("blue", "green")), ("db", ())],
}


def rendered(
    text: str, *, budget: Budget | None = None, files: dict[str, str] | None = None, **options: Any
) -> Rendered:
    def read_file(path: str) -> str:
        if path not in (files or {}):
            raise Wrong(f"{path!r} cannot be read")
        return (files or {})[path]

    inputs = Inputs(FETCHED, ENV.get, read_file, NOW_NS)
    return compile_template(text, **options).render(inputs, budget)


def render(text: str, **options: Any) -> str:
    found = rendered(text, **options)
    assert found.is_complete, found.missing
    return found.text


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("plain", "plain"),
        ("", ""),
        ("a {{ 1 }} b", "a 1 b"),
        ("a  {{- 1 -}}  b", "a1b"),
        ("a{{/* said nowhere */}}b", "ab"),
        ("a {{- /* said nowhere */ -}} b", "ab"),
        ('{{ "}}" }}', "}}"),
        ("{{ `raw \\n` }}", "raw \\n"),
        (r'{{ "t\t\x41\u00e9\101\"" }}', 't\tAéA"'),
        ("{{ 'a' }} {{ 0x1F }} {{ -2 }} {{ 1.5 }} {{ 2e2 }} {{ true }} {{ nil }}", "97 31 -2 1.5 200 true <no value>"),
        ("{{ if true }}a{{ end }}", "a"),
        ("{{ if 0 }}a{{ else }}b{{ end }}", "b"),
        ('{{ if "" }}a{{ else if 0 }}b{{ else if 1 }}c{{ else }}d{{ end }}', "c"),
        ('{{ with "x" }}{{ . }}{{ end }}{{ with "" }}a{{ else }}b{{ end }}', "xb"),
        ('{{ with "" }}a{{ else with "z" }}{{ . }}{{ end }}', "z"),
        ("{{ range loop 3 }}{{ . }}{{ end }}", "012"),
        ("{{ range loop 2 4 }}{{ . }}{{ end }}", "23"),
        ("{{ range 3 }}{{ . }}{{ end }}", "012"),
        ("{{ range $i, $x := split `,` `a,b` }}{{ $i }}{{ $x }}{{ end }}", "0a1b"),
        ("{{ range $x := split `,` `a,b` }}{{ $x }}{{ . }}{{ end }}", "aabb"),
        ("{{ range split `,` `` }}a{{ else }}none{{ end }}", "none"),
        ("{{ range nil }}a{{ else }}none{{ end }}", "none"),
        ('{{ range $k, $v := parseJSON `{"b":1,"a":2}` }}{{ $k }}{{ $v }}{{ end }}', "a2b1"),
        (
            "{{ range 5 }}{{ if eq . 1 }}{{ continue }}{{ end }}{{ if eq . 3 }}{{ break }}{{ end }}{{ . }}{{ end }}",
            "02",
        ),
        ("{{ $x := 1 }}{{ if true }}{{ $x = 2 }}{{ $x := 3 }}{{ end }}{{ $x }}", "2"),
        ("{{ $x := 1 }}{{ range 3 }}{{ $x = add 1 $x }}{{ end }}{{ $x }}", "4"),
        ('{{ $m := parseJSON `{"a":{"b":"c"}}` }}{{ $m.a.b }}{{ (index $m "a").b }}', "cc"),
        ('{{ "x" | printf "%s-%s" "a" | toUpper }}', "A-X"),
        ('{{ and true "" "never" }}|{{ and 1 2 }}|{{ or 0 "d" }}|{{ or 0 "" }}|{{ not 1 }}', "|2|d||false"),
        ('{{ or true (index (split "," "") 9) }}', "true"),
        ('{{ "x" | and true }}', "x"),
        (
            '{{ eq 1 2 1 }} {{ ne "a" "b" }} {{ lt 1 2 }} {{ le 2 2 }} {{ gt "b" "a" }} {{ ge 1 2 }}',
            "true true true true true false",
        ),
        ("{{ eq nil nil }} {{ eq 1.0 1 }}", "true true"),
        ("[[ 1 ]] {{ 2 }}", "1 {{ 2 }}"),
    ],
)
def test_what_templates_render(template: str, text: str) -> None:
    options = {"left": "[[", "right": "]]"} if template.startswith("[[") else {}
    assert render(template, **options) == text


@pytest.mark.parametrize(
    ("template", "text"),
    [
        (
            '{{ printf "%5d|%-5s|%05d|%+d|%q|%v|%t|%x|%X|%.2f|%T|%c|%%" '
            '42 "ab" 7 3 "a\\"b" true false 255 "hi" 1.5 1 65 }}',
            '   42|ab   |00007|+3|"a\\"b"|true|false|ff|6869|1.50|int|A|%',
        ),
        (
            '{{ printf "%d" "x" }}{{ printf "%d" }}{{ printf "a" 1 }}{{ printf "%" }}',
            "%!d(string=x)%!d(MISSING)a%!(EXTRA int=1)%!(NOVERB)",
        ),
        ('{{ printf "%.2s|%g|%e|%U" "abc" 0.5 100.0 233 }}', "ab|0.5|1.000000e+02|U+00E9"),
        ('{{ print 1 "a" }}{{ println "b" 2 }}', "1ab 2\n"),
        ('{{ len "é" }} {{ len (loop 3) }} {{ slice "abcd" 1 3 }} {{ index (loop 3) 2 }}', "2 3 bc 2"),
        ('{{ join "," (split "-" "a-b") }} {{ "a-b" | split "-" | join "+" }}', "a,b a+b"),
        ('{{ replaceAll "a" "bb" "banana" }}', "bbbnbbnbb"),
        ('{{ regexReplaceAll "a(?P<n>.)" "<$1${n}$$>" "abac" }} {{ regexMatch "^a.c$" "abc" }}', "<bb$><cc$> true"),
        (
            '{{ "Ab" | toUpper }}{{ "Ab" | toLower }}{{ "a b" | toTitle }}{{ trimSpace " x " }}{{ trim "-" "-x-" }}',
            "ABabA Bxx",
        ),
        ('{{ trimPrefix "a" "ab" }}{{ trimSuffix "b" "ab" }}{{ indent 2 "x\\ny" }}', "ba  x\n  y"),
        (
            '{{ base64Encode "hi" }} {{ base64Decode "aGk=" }} {{ base64URLEncode "??>" }} '
            '{{ base64URLDecode "Pz8-" }}',
            "aGk= hi Pz8- ??>",
        ),
        (
            '{{ md5sum "a" }} {{ sha1sum "a" }} {{ slice (sha256sum "a") 0 8 }} '
            '{{ slice (hmacSHA256Hex "a" "k") 0 8 }}',
            "0cc175b9c0f1b6a831c399e269772661 86f7e437faa5a7fce15d1ddcb9eaeaea377667b8 ca978112 78da9151",
        ),
        (
            '{{ toJSON (parseJSON `{"b":[1,null],"a":"é"}`) }} {{ toJSONPretty (loop 1) }}',
            '{"a":"é","b":[1,null]} [\n  0\n]',
        ),
        (
            '{{ parseInt "7" | add 1 }} {{ subtract 2 5 }} {{ multiply 3 4 }} {{ divide 2 -7 }} {{ modulo 2 -7 }} '
            "{{ divide 2 7.0 }}",
            "8 3 12 -3 -1 3.5",
        ),
        (
            '{{ maximum 2 5 }}{{ minimum 2 5 }} {{ parseBool "true" }} {{ parseFloat "1.25" }} {{ add "2" 3 }}',
            "52 true 1.25 5",
        ),
        ('{{ contains "a" (split "," "a,b") }} {{ in (split "," "a,b") "c" }} {{ in "abc" "b" }}', "true false true"),
        (
            '{{ $l := split "," "a,b" }}{{ containsAll $l $l }} {{ containsAny (split "," "z,a") $l }} '
            '{{ containsNone (split "," "z") $l }} {{ containsNotAll (split "," "z,a") $l }}',
            "true true true true",
        ),
        ('{{ (mergeMap (parseJSON `{"a":1,"b":2}`) (parseJSON `{"a":3}`)).b }} {{ urlquery "a b&c" }}', "2 a+b%26c"),
        (
            '{{ timestamp }} {{ timestamp "unix" }} {{ now "2006-01-02 15:04:05" }}',
            "2023-11-14T22:13:20Z 1700000000 2023-11-14 22:13:20",
        ),
        ('{{ parseJSON "" }}{{ parseJSON `"x"` }}', "map[]x"),
    ],
)
def test_what_functions_make_of_their_arguments(template: str, text: str) -> None:
    assert render(template) == text


def test_environment_and_node_are_looked_up_by_name() -> None:
    assert render('{{ env "PORT" }} {{ env "NOPE" }}|{{ mustEnv "PORT" }}') == "80 |80"
    assert render('{{ envOrDefault "NOPE" "d" }} {{ envOrDefault "EMPTY" "d" }}') == "d "
    assert render('{{ env "node.datacenter" }} {{ node "datacenter" }} {{ attr "kernel.name" }} {{ meta "rack" }}') == (
        "dc1 dc1 linux r7"
    )


def test_a_variable_gives_its_items_and_what_is_known_of_it() -> None:
    assert render('{{ with nomadVar "app" }}{{ .user }}/{{ .pass }}/{{ .nothing }}{{ end }}') == "me/x y/"
    assert render('{{ range (nomadVar "app").Tuples }}{{ .Key }}={{ .Value }};{{ end }}') == "pass=x y;user=me;"
    assert render('{{ (nomadVar "app").Metadata.ModifyIndex }} {{ (nomadVar "app").Keys }}') == "9 [pass user]"
    assert render('{{ range $k, $v := nomadVar "app" }}{{ $k }}={{ $v }};{{ end }}') == "pass=x y;user=me;"
    assert (
        render('{{ range nomadVarList "a" }}{{ .Path }} {{ end }}{{ range nomadVarListSafe "a" }}.{{ end }}')
        == "app app/db .."
    )
    assert render('{{ nomadVarExists "app" }} {{ nomadVarExists "gone" }}') == "true false"


def test_services_are_found_by_name_tag_and_choice() -> None:
    each = "{{ .Address }}:{{ .Port }} {{ end }}"
    assert render('{{ range nomadService "web" }}' + each) == "10.0.0.1:8000 10.0.0.2:8000 "
    assert render('{{ range nomadService "green.web" }}' + each) == "10.0.0.2:8000 "
    assert render('{{ range nomadService 1 "me" "web" }}' + each) == "10.0.0.2:8000 "
    assert render('{{ range nomadService "nobody" }}x{{ else }}none{{ end }}') == "none"
    assert render('{{ range nomadServices }}{{ .Name }}:{{ .Tags | join "," }} {{ end }}') == "web:blue,green db: "
    assert (
        render('{{ range $tag, $s := nomadService "web" | byTag }}{{ $tag }}{{ len $s }} {{ end }}')
        == "blue1 green1 v11 "
    )


def test_what_was_not_fetched_is_missing_and_the_rest_is_still_looked_at() -> None:
    found = rendered(
        '{{ (nomadVar "new").key | toUpper }}{{ range nomadService "other" }}{{ end }}'
        '{{ nomadVar "gone" }}{{ nomadVarListSafe "none" }}'
    )

    assert sorted(map(str, found.missing)) == [
        "nomad.service(other)",
        "nomad.var(gone)",
        "nomad.var(new)",
        "nomad.var.list(none)",
    ]
    assert found.used == found.missing


def test_files_are_read_through_the_inputs() -> None:
    assert render('{{ file "a.txt" | trimSpace }}', files={"a.txt": "x\n"}) == "x"
    with pytest.raises(TemplateError, match="cannot be read"):
        render('{{ file "b.txt" }}')
    with pytest.raises(TemplateError, match="cannot be read here"):
        compile_template('{{ file "x" }}').render(Inputs({}))


def test_a_missing_key_is_nothing_unless_it_should_be_an_error() -> None:
    text = '{{ (parseJSON `{"a":1}`).b }}'
    assert render(text) == "<no value>"
    for template in (text, '{{ (nomadVar "app").b }}'):
        with pytest.raises(TemplateError, match="no key 'b'"):
            render(template, error_on_missing_key=True)


@pytest.mark.parametrize(
    ("template", "place", "words"),
    [
        ("a\n  {{ foo }}", "2:6", "no function 'foo'"),
        ("{{ nomadVr 1 }}", "1:4", "did you mean nomadVar"),
        ("{{ plugin 1 }}", "1:4", "disabled"),
        ("{{ executeTemplate 1 }}", "1:4", "disabled"),
        ('{{ key "a" }}', "1:4", "nomadVar"),
        ('{{ service "a" }}', "1:4", "nomadService"),
        ('{{ define "x" }}{{ end }}', "1:4", "not part"),
        ('{{ template "x" }}', "1:4", "not part"),
        ("{{ if 1 }}", "1:1", "has no end"),
        ("{{ end }}", "1:1", "without a block"),
        ("{{ if 1 }}{{ else range 1 }}{{ end }}", "1:19", "does not fit"),
        ("{{ if 1 }}{{ end now }}", "1:18", "takes nothing"),
        ("{{ }}", "1:1", "nothing in it"),
        ("{{ 1 ", "1:1", "no end"),
        ("{{/* x ", "1:1", "no end"),
        ("{{/* x */ 1 }}", "1:1", "ends before"),
        ('{{ "abc }}', "1:4", "no end"),
        (r'{{ "\q" }}', "1:4", "no escape"),
        (r'{{ "\ud800" }}', "1:4", "no character"),
        ("{{ 'ab' }}", "1:4", "not one character"),
        ("{{ 1 + 1 }}", "1:6", "no operators"),
        ("{{ (1 }}", "1:5", "without its )"),
        ("{{ 1) }}", "1:5", "does not fit"),
        ("{{ 1 | }}", "1:6", "empty part"),
        ("{{ 1 2 }}", "1:4", "only functions"),
        ("{{ 1 | 2 }}", "1:8", "only functions"),
        ("{{ $x }}", "1:4", "not known here"),
        ("{{ $x = 1 }}", "1:4", "not known here"),
        ("{{ $ := 1 }}", "1:4", "another value"),
        ("{{ $a, $b := 1 }}", "1:8", "`range` only"),
        ("{{ if true }}{{ $x := 1 }}{{ end }}{{ $x }}", "1:39", "not known here"),
        ("{{ break }}", "1:4", "outside"),
        ("{{ range 1 }}{{ break 1 }}{{ end }}", "1:23", "takes nothing"),
        ("{{ := }}", "1:4", "does not fit"),
        ("{{ .x }}", "1:4", "has no field"),
        ("{{ $x := 1 }}{{ $x.y }}", "1:17", "int has no field"),
        ('{{ (index (nomadService "web") 0).Adress }}', "1:5", "did you mean .Address"),
        ('{{ (index (nomadService "web") 0).Zzz }}', "1:5", "there are ID"),
        ("{{ range true }}{{ end }}", "1:10", "needs a list"),
        ("{{ toUpper }}", "1:4", "does not take no arguments"),
        ("{{ toUpper 1 2 }}", "1:4", "does not take 2 arguments"),
        ("{{ toUpper 1 }}", "1:4", "must be a text, not int"),
        ('{{ eq 1 "1" }}', "1:4", "cannot be compared"),
        ("{{ lt true false }}", "1:4", "cannot be compared"),
        ("{{ eq 1 }}", "1:4", "something to compare"),
        ("{{ and }}", "1:4", "something to look at"),
        ("{{ index (loop 2) 5 }}", "1:4", "out of range"),
        ('{{ index (loop 2) "a" }}', "1:4", "by a number"),
        ("{{ index 1 2 }}", "1:4", "has no index"),
        ('{{ slice "abc" 2 1 }}', "1:4", "no piece"),
        ("{{ slice 1 }}", "1:4", "cannot be sliced"),
        ("{{ len 1 }}", "1:4", "no length"),
        ("{{ divide 0 1 }}", "1:4", "by zero"),
        ('{{ add "x" 1 }}', "1:4", "not a number"),
        ("{{ add true 1 }}", "1:4", "not a number"),
        ("{{ multiply 9223372036854775807 9223372036854775807 }}", "1:4", "64 bits"),
        ('{{ parseInt "x" }}', "1:4", "whole number"),
        ('{{ parseInt "99999999999999999999" }}', "1:4", "64 bits"),
        ('{{ parseFloat "x" }}', "1:4", "not a number"),
        ('{{ parseBool "x" }}', "1:4", "neither"),
        ('{{ parseJSON "{" }}', "1:4", "not JSON"),
        ('{{ base64Decode "*" }}', "1:4", "base64Decode: it does not decode"),
        ('{{ regexMatch "(" "x" }}', "1:4", "not a pattern"),
        ('{{ indent -1 "x" }}', "1:4", "number of spaces"),
        ('{{ join "," "x" }}', "1:4", "must be a list"),
        ("{{ mergeMap 1 2 }}", "1:4", "two maps"),
        ('{{ mustEnv "NOPE" }}', "1:4", "not set"),
        ('{{ nomadVar "a@other" }}', "1:4", "other namespaces"),
        ('{{ nomadVar "" }}', "1:4", "empty"),
        ('{{ nomadService "a" "b" }}', "1:4", "takes a name"),
        ('{{ nomadService 0 "k" "b" }}', "1:4", "how many"),
        ('{{ nomadService "a@b" }}', "1:4", "names no service"),
        ("{{ 1111111111222222222233333333334444444444555 }}", "1:4", "too long"),
    ],
)
def test_what_is_wrong_is_told_with_its_place(template: str, place: str, words: str) -> None:
    with pytest.raises(TemplateError) as caught:
        render(template, name="app.tmpl")

    assert str(caught.value).startswith(f"app.tmpl:{place}: ")
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "template",
    [
        "{{ parseInt $s }}",
        "{{ parseFloat $s }}",
        "{{ parseBool $s }}",
        "{{ add 1 $s }}",
        "{{ parseJSON $s }}",
        "{{ base64Decode $s }}",
        '{{ regexMatch (print "(" $s) "x" }}',
        "{{ index $s $s }}",
        "{{ index 1 $s }}",
        "{{ indent $s $s }}",
        "{{ join $s $s }}",
        "{{ range $s }}{{ end }}",
        "{{ $s.field }}",
        "{{ eq $s 1 }}",
        "{{ slice $s 9999 }}",
        "{{ parseJSON `9999999999999999999999999999999999999999999` }}{{ $s }}",
    ],
)
def test_no_message_tells_what_is_in_a_variable(template: str) -> None:
    with pytest.raises(TemplateError) as caught:
        render('{{ $s := (nomadVar "app").pass }}' + template)

    assert "x y" not in str(caught.value)


def test_denied_functions_are_the_operators_choice() -> None:
    assert render("{{ toUpper `a` }}", denied=()) == "A"
    with pytest.raises(TemplateError, match="'toUpper' is disabled"):
        render("{{ toUpper `a` }}", denied=("toUpper",))


@pytest.mark.parametrize(
    "template",
    [
        "{{ range loop 100000000 }}x{{ end }}",
        "{{ range 100000000 }}x{{ end }}",
        "{{ range loop 1000 }}{{ range loop 1000 }}{{ range loop 1000 }}x{{ end }}{{ end }}{{ end }}",
        '{{ $x := "ab" }}{{ range loop 64 }}{{ $x = print $x $x }}{{ end }}',
        '{{ $x := "a" }}{{ range loop 64 }}{{ $x = replaceAll "a" "aaaa" $x }}{{ end }}',
        '{{ $x := "a" }}{{ range loop 64 }}{{ $x = regexReplaceAll "a" "$0$0$0$0" $x }}{{ end }}',
        '{{ $x := "a\\nb" }}{{ range loop 2000 }}{{ $x = indent 1000 $x }}{{ end }}',
        '{{ $x := "a" }}{{ range loop 64 }}{{ $x = printf "%s%s%s" $x $x $x }}{{ end }}',
        '{{ $x := "a" }}{{ range loop 64 }}{{ $x = join $x (split "" "aaaa") }}{{ end }}',
        '{{ $x := printf "%1000d" 1 }}{{ range loop 100000 }}{{ $x }}{{ end }}',
        "{{ parseJSON `" + "[" * 60 + "]" * 60 + "` }}",
        '{{ $x := printf "%1000d" 1 }}{{ range loop 9 }}{{ $x = print $x $x }}{{ end }}'
        "{{ range loop 10000 }}{{ $y := print $x $x }}{{ end }}",
        "".join(f'{{{{ nomadService "s{n}" | len }}}}' for n in range(300)),
    ],
    ids=range(13),
)
def test_hostile_templates_end_soon_and_small(template: str) -> None:
    with pytest.raises(TooMuch):
        render(template)


def test_what_takes_too_long_is_ended_by_the_clock() -> None:
    ticks = iter(range(1_000_000))
    with pytest.raises(TooMuch, match="longer than 5 s"):
        render("{{ range loop 50000 }}{{ end }}", budget=Budget(clock=lambda: float(next(ticks))))


def test_nesting_is_bounded() -> None:
    with pytest.raises(TemplateError, match="deeper than"):
        render("{{ if 1 }}" * 100 + "{{ end }}" * 100)
    with pytest.raises(TemplateError, match="deeper than"):
        render("{{ " + "(" * 100 + "1" + ")" * 100 + " }}")
    assert render("{{ " + "(" * 60 + "1" + ")" * 60 + " }}") == "1"


def test_a_template_is_bounded_in_size() -> None:
    with pytest.raises(TemplateError, match="characters"):
        compile_template("x" * ((1 << 20) + 1))
    with pytest.raises(TemplateError, match="words"):
        compile_template("{{ 1 }}" * 50_001)


_PIECES = st.sampled_from(
    [
        "{{",
        "}}",
        " ",
        "-",
        "if",
        "end",
        "range",
        "else",
        "with",
        ".",
        "$x",
        ":=",
        "=",
        "|",
        "(",
        ")",
        '"a"',
        "1",
        "x",
        "toUpper",
        "/*",
        "*/",
        "\n",
        "nomadVar",
        "`",
        "'",
        "\\",
        "é",
        "loop",
        "3",
        "break",
        ".a",
    ]
)


@settings(max_examples=200)
@given(st.lists(_PIECES, max_size=30).map(" ".join) | st.lists(_PIECES, max_size=30).map("".join))
def test_any_text_renders_or_is_refused_with_a_place(text: str) -> None:
    place = (1, 1)
    try:
        rendered(text, budget=Budget(steps=5_000))
    except TemplateError as error:
        place = (error.line, error.column)
    assert min(place) >= 1


def test_the_guide_names_every_function() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guides" / "templates.md").read_text()
    named = set(re.findall(r"[`\s]([A-Za-z][A-Za-z0-9]+)(?=[`\s])", guide))

    assert KNOWN - named == set()

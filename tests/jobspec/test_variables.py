"""Variables and locals, beyond what was recorded elsewhere."""

from __future__ import annotations

import pytest

from fedsched.jobspec.load import job_source
from fedsched.jobspec.problems import JobfileProblems
from tests.jobspec.asking import in_json, problem, problems, value

STRING = 'variable "s" {\n  type = string\n}\n'


def test_values_by_weight_default_environment_files_command_line() -> None:
    declared = 'variable "s" {\n  default = "default"\n}\n'
    environment = {"NOMAD_VAR_s": "environment"}
    files = [("a.hcl", 's = "first"\n'), ("b.hcl", 's = "second"\n')]

    assert value("var.s", declared).text == "default"
    assert value("var.s", declared, environ=environment).text == "environment"
    assert value("var.s", declared, environ={**environment, "FEDSCHED_VAR_s": "ours"}).text == "ours"
    assert value("var.s", declared, environ=environment, var_files=files).text == "second"
    assert value("var.s", declared, var_files=files, variables={"s": "line"}).text == "line"


def test_a_variable_without_a_value_is_refused_even_if_unused() -> None:
    (told,) = problems("1", STRING)

    assert "'s' has no default: give it with -var s=..." in told.message
    assert told.span is not None
    assert told.span.first.line == 4


def test_undeclared_names_are_refused_when_strict_and_passed_over_otherwise() -> None:
    given = {"variables": {"t": "1"}, "var_files": [("v", "u = 2\n")]}

    told = problems("1", 'variable "s" {\n  default = 1\n}\n', **given)
    assert [p.summary for p in told] == ["Undeclared variable"] * 2
    assert told[0].suggestion == "s"
    assert in_json("1", strict=False, **given) == "1"
    assert in_json("1", environ={"NOMAD_VAR_zz": "x"}) == "1"


def test_a_problem_in_a_var_file_names_that_file() -> None:
    (told,) = problems("1", STRING, var_files=[("prod.hcl", "\ns = [\n")])

    assert str(told).startswith("prod.hcl:2:5: ")


def test_a_value_that_does_not_fit_is_not_also_reported_as_missing() -> None:
    declared = 'variable "n" {\n  type = number\n}\nvariable "l" {\n  type = list(string)\n}\n'

    told = problems("1", declared, variables={"n": "x", "l": "[upper(1)]"})

    assert {p.summary for p in told} == {"Value does not fit its variable", "Function not allowed"}


def test_var_files_may_be_json() -> None:
    assert in_json("var.s", 'variable "s" {}\n', var_files=[("v.json", '{"s": {"a": [1, null, true]}}')]) == (
        '{"a":[1,null,true]}'
    )


def test_other_types_on_the_command_line_are_parsed() -> None:
    declared = 'variable "m" {\n  type = map(list(number))\n}\n'

    assert in_json("var.m", declared, variables={"m": '{ a = [1, "2"] }'}) == '{"a":[1,2]}'
    assert in_json("var.m", declared, environ={"NOMAD_VAR_m": "{}"}) == "{}"


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ('variable "a" "b" {\n}\n', "one name"),
        ('variable "a" {\n  defalt = 1\n}\n', "Did you mean 'default'?"),
        ('variable "a" {\n  stuff {}\n}\n', "'stuff' is not known"),
        ('variable "a" {\n  default = 1\n  description = []\n}\n', "a string is needed"),
        ('variable "a" {\n  type = "string"\n}\n', "without quotes"),
        ('variables "x" {\n}\n', "takes none"),
        ("variables {\n  x {}\n}\n", "holds only"),
        ('variable "a" {\n  default = 1\n}\nvariable "a" {\n  default = 2\n}\n', "already been declared in line 4"),
        ("locals {\n  a {}\n}\n", "holds only"),
        ('locals "x" {\n}\n', "takes none"),
        (
            'variable "a" {\n  default = 1\n  validation {\n    condition = true\n    error_message = "x"\n  }\n}\n',
            "must look",
        ),
        (
            'variable "a" {\n  default = 1\n  validation {\n    condition = var.a == var.b\n'
            '    error_message = "x"\n  }\n}\n',
            "var.a only",
        ),
        (
            'variable "a" {\n  default = 1\n  validation {\n    condition = var.a == 1 ? null : true\n'
            '    error_message = "x"\n  }\n}\n',
            "not null",
        ),
        (
            'variable "a" {\n  default = 1\n  validation {\n    condition = var.a == 1\n    error_message = "x"\n'
            "    more = 1\n  }\n}\n",
            "'more' is not known",
        ),
    ],
)
def test_a_declaration_is_refused(declared: str, words: str) -> None:
    assert words in problem("1", declared)


def test_a_refused_value_carries_the_rules_own_words() -> None:
    rule = '  validation {\n    condition = var.a > 5\n    error_message = "Too few."\n  }\n'
    declared = f'variable "a" {{\n  default = 1\n{rule}}}\n'

    (told,) = problems("1", declared, variables={"a": "3"})

    assert told.message == "Value of 'a' refused: Too few. (the rule is in line 6)"
    assert in_json("var.a", declared, variables={"a": "6"}) == "6"


def test_locals_may_use_one_another_in_any_order() -> None:
    rest = 'locals {\n  a = local.b + local["c"]\n  b = local.c * 2\n  c = 3\n}\n'

    assert in_json("local.a", rest) == "9"
    assert in_json("local", rest) == '{"a":9,"b":6,"c":3}'
    assert in_json('local["a"]', rest) == "9"


def test_a_loop_variable_hides_locals_and_variables() -> None:
    assert in_json("[for local in [{ a = 2 }] : local.a]", "locals {\n  a = 1\n}\n") == "[2]"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no `job` block"),
        ('job "a" {}\njob "b" {}\n', None),
        ('jobb "a" {}\n', "Did you mean 'job'?"),
    ],
)
def test_a_file_has_one_job(text: str, words: str | None) -> None:
    if words is None:
        assert "one job" in job_source(text, "two.hcl").problems[0].message
        return
    with pytest.raises(JobfileProblems) as caught:
        job_source(text, "none.hcl")
    assert words in str(caught.value)

"""What a job says to those who will run it is judged before it is taken: templates, and settings of drivers."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from fedsched.drivers.content_checks import CONTENT
from fedsched.drivers.registry import BUILT_IN, DriverHost
from fedsched.drivers.schemas import TASK_SCHEMAS
from fedsched.jobspec.jobfile import check
from fedsched.model.job_problems import problems
from fedsched.model.problem import flat
from fedsched.model.task import Task, Template
from tests.builders import a_group, a_job, a_task


def wrong_with(*tasks: Task) -> list[tuple[str, str]]:
    job = a_job(groups=[a_group(tasks=tasks)])
    return [(one.path, one.message) for one in flat(problems(job, texts=CONTENT))]


def with_template(text: str, **fields: Any) -> Task:
    return a_task(templates=(Template(embedded_tmpl=text, dest_path="local/x", **fields),))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a\n  {{ nomadVarr `x` }}", "line 2, column 6 of the template: there is no function 'nomadVarr'"),
        ("{{ if }}", "line 1, column"),
        ("{{ range . }}", "line 1, column 1 of the template: `range` has no end"),
        ("{{ plugin `ls` }}", "there is no function 'plugin'"),
        ("x {{ $y }}", "line 1, column 6 of the template: variable $y is not known here"),
    ],
)
def test_a_template_that_cannot_be_read_is_refused_with_the_place_in_it(text: str, told: str) -> None:
    ((path, message),) = wrong_with(with_template(text))

    assert path == "TaskGroups[0].Tasks[0].Templates[0].EmbeddedTmpl"
    assert told in message


def test_a_template_is_read_with_its_own_delimiters_and_one_in_a_file_later() -> None:
    assert wrong_with(with_template("{{ nothing like it", left_delim="<<", right_delim=">>")) == []
    assert wrong_with(with_template("<< nothing >>", left_delim="<<", right_delim=">>")) != []
    assert wrong_with(a_task(templates=(Template(source_path="local/t", dest_path="local/x"),))) == []


@pytest.mark.parametrize(
    ("driver", "config", "told"),
    [
        ("raw_exec", {}, "config.command is required"),
        ("exec", {"command": "x", "argz": []}, "config.argz is unknown: did you mean args?"),
        ("docker", {"image": "x", "privileged": "maybe"}, "config.privileged = 'maybe' is not true or false"),
        ("podman", {"image": "x", "mount": [{"type": "bind"}]}, "config.mount[0].target is required"),
        ("java", {"args": "one"}, "config.args = 'one' is not a list of texts"),
        ("mock_driver", {"run_for": ["x"]}, "config.run_for = ['x'] is not a duration"),
    ],
)
def test_settings_of_a_driver_that_it_does_not_take_are_refused(driver: str, config: Any, told: str) -> None:
    ((path, message),) = wrong_with(a_task(driver=driver, config=config))

    assert path == "TaskGroups[0].Tasks[0].Config"
    assert message.startswith(told)


def test_what_is_filled_in_later_and_what_drivers_of_others_take_is_let_through() -> None:
    assert wrong_with(a_task(driver="raw_exec", config={"command": "${X}/x", "args": "${meta.args}"})) == []
    assert wrong_with(a_task(driver="somebody_elses", config={"anything": 1})) == []


def test_every_driver_checks_at_the_start_what_was_checked_at_submission(tmp_path: Path) -> None:
    assert set(TASK_SCHEMAS) == set(BUILT_IN)
    for name, where in BUILT_IN.items():
        module, _, maker = where.partition(":")
        driver = getattr(import_module(module), maker)(DriverHost(state_dir=tmp_path / name))
        assert driver.task_schema is TASK_SCHEMAS[name]


JOB = """job "web" {
  group "g" {
    task "t" {
      driver = "raw_exec"
      config {
        comand = "x"
      }
      template {
        destination = "local/x"
        data        = <<EOT
port = {{ env "P" }}
{{ serviceX "db" }}
EOT
      }
    }
  }
}
"""


def test_a_job_file_is_told_where_in_the_file_and_where_in_the_template() -> None:
    found = check(JOB, "web.hcl", texts=CONTENT).problems
    texts = [one.render() for one in found]

    assert len(found) == 3
    assert any("config.comand is unknown: did you mean command?" in text and "web.hcl:5" in text for text in texts)
    assert any("config.command is required" in text for text in texts)
    assert any(
        "line 2, column 4 of the template: there is no function 'serviceX'" in text and "web.hcl:11" in text
        for text in texts
    )

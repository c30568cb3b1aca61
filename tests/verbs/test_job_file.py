"""Job files on the command line: every form of them, variables, and what is said about wrong ones."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fedsched.rpc.methods.job import JOB_REGISTER, JobWriteReply
from tests.verbs.commands import Seen, fedsched

WEB = {"ID": "web", "Type": "batch", "TaskGroups": [{"Name": "front", "Count": 2}]}
HCL = """\
variable "copies" {
  type = number
}
job "web" {
  type = "batch"
  group "front" {
    count = var.copies
    task "server" {
      driver = "exec"
      config {
        command = "/bin/true"
      }
    }
  }
}
"""
FIVE_MISTAKES = """\
job "web" {
  tpye = "service"
  priority = 500
  group "g" {
    count = -2
    task "t" {
      driver = "raw_exec"
      config { command = "/bin/true" }
      resources { cpu = "lots" }
      restart { mode = "sometimes" }
    }
  }
}
"""
ODD_NETWORK = """\
job "web" {
  group "g" {
    network {
      mode = "odd"
    }
    task "t" {
      driver = "mine"
    }
  }
}
"""


@pytest.fixture(autouse=True)
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def output_of(line: str, **more: str) -> dict[str, object]:
    """The job as `job run -output` prints it."""
    seen = fedsched(f"job run -output {line}", **more)
    assert seen.code == 0, seen.err
    job: dict[str, object] = json.loads(seen.out)["Job"]
    return job


def count_of(line: str, **more: str) -> object:
    groups = output_of(line, **more)["TaskGroups"]
    assert isinstance(groups, list)
    return groups[0]["Count"]


@pytest.mark.parametrize("value", [WEB, {"Job": WEB}, {"job": WEB}])
@pytest.mark.parametrize("flag", ["", "-json "])
def test_a_job_in_json_may_be_wrapped_or_bare(value: object, flag: str) -> None:
    Path("web.json").write_text(json.dumps(value))

    job = output_of(f"{flag}web.json")

    assert (job["ID"], job["Type"]) == ("web", "batch")


def test_a_dash_reads_standard_input() -> None:
    assert output_of("-", stdin=json.dumps(WEB))["ID"] == "web"
    assert output_of("-var copies=1 -", stdin=HCL)["ID"] == "web"


def test_job_language_in_json_is_read_as_such() -> None:
    text = json.dumps({"job": {"web": {"group": {"g": {"count": 3, "task": {"t": {"driver": "mine"}}}}}}})

    assert count_of("-", stdin=text) == 3


def test_members_that_no_field_claims_are_named() -> None:
    seen = fedsched("job run -output -", stdin=json.dumps(WEB | {"Priorty": 5}))

    assert seen.err == "Warning: Job.Priorty is not known and was ignored\n"


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b'{"ID": "web",\n  "Type" "batch"}', "Error: a.json: line 2, column 10: Expecting ':' delimiter\n"),
        (b'{"ID": "\xff"}', "Error: a.json: byte 8 is not UTF-8\n"),
        (b"[" * 100_000, "Error: a.json: nested too deeply\n"),
        (b"[]", "Error: a.json: the job is no JSON object\n"),
        (b'{"ID": ""}', "Error: a.json: the job has no ID\n"),
        (b'{"ID": 7}', "Error: Job.ID: expected string, got integer 7\n"),
        (b" " * (8 * 1024 * 1024 + 1), "Error: a.json: larger than 8388608 bytes\n"),
    ],
)
def test_a_wrong_json_file_is_refused_with_the_place(data: bytes, message: str) -> None:
    Path("a.json").write_bytes(data)

    seen = fedsched("job run -json a.json")

    assert seen.code == 1
    assert seen.err.startswith(message)


def test_a_missing_file_and_one_that_is_no_text_are_named() -> None:
    Path("a.hcl").write_bytes(b'job "\xff" {}')

    assert "none.hcl: cannot be read: No such file" in fedsched("job run none.hcl").err
    assert "a.hcl: byte 5 is not UTF-8" in fedsched("job run a.hcl").err


class TestVariables:
    """Later sources win: environment, files, the command line."""

    def test_a_value_comes_from_the_command_line(self) -> None:
        assert count_of("-var copies=3 -", stdin=HCL) == 3

    def test_a_value_comes_from_files_and_later_ones_win(self) -> None:
        Path("a.vars").write_text("copies = 4\n")
        Path("b.vars").write_text("copies = 5\n")

        assert count_of("-var-file a.vars -var-file b.vars -", stdin=HCL) == 5
        assert count_of("-var copies=6 -var-file a.vars -", stdin=HCL) == 6

    @pytest.mark.parametrize("prefix", ["NOMAD_VAR_", "FEDSCHED_VAR_"])
    def test_a_value_comes_from_the_environment(self, prefix: str) -> None:
        seen = fedsched("job run -output -", stdin=HCL, environ={f"{prefix}copies": "7"})

        assert json.loads(seen.out)["Job"]["TaskGroups"][0]["Count"] == 7

    def test_one_that_is_missing_is_said(self) -> None:
        seen = fedsched("job run -output -", stdin=HCL)

        assert seen.code == 1
        assert "copies" in seen.err

    def test_one_that_nobody_declares_is_refused_unless_that_is_switched_off(self) -> None:
        line = "job run -output -var copies=1 -var nope=1 {}-"

        assert fedsched(line.format(""), stdin=HCL).code == 1
        assert fedsched(line.format("-hcl2-strict=false "), stdin=HCL).code == 0

    def test_words_that_are_no_assignment_are_bad_usage(self) -> None:
        assert "-var 'copies' is no name=value" in fedsched("job run -var copies -", stdin=HCL).err


def test_a_job_file_reads_its_neighbours() -> None:
    Path("sub").mkdir()
    Path("sub/motd").write_text("hello")
    Path("sub/web.hcl").write_text(
        'job "web" {\n  meta {\n    motd = file("motd")\n  }\n  task "t" {\n    driver = "mine"\n  }\n}\n'
    )

    assert output_of("sub/web.hcl")["Meta"] == {"motd": "hello"}


def test_the_source_travels_with_the_job() -> None:
    Path("web.hcl").write_text(HCL)

    seen = fedsched("job run -detach -var copies=2 web.hcl", {JOB_REGISTER: lambda _: JobWriteReply(eval_id="e")})

    assert seen.code == 0, seen.err
    (request,) = seen.agent.requests(JOB_REGISTER)
    assert request.submission.source == HCL
    assert request.submission.format == "hcl2"
    assert request.submission.variable_flags == {"copies": "2"}


def validated(text: str) -> Seen:
    Path("bad.hcl").write_text(text)
    return fedsched("job validate bad.hcl")


def test_a_valid_job_is_said_to_be() -> None:
    seen = validated(HCL.replace("var.copies", "2").replace("type = number", "default = 1"))

    assert (seen.code, seen.out) == (0, "Job validation successful\n")


def test_five_mistakes_are_reported_in_one_go_with_their_lines() -> None:
    seen = validated(FIVE_MISTAKES)

    assert seen.code == 1
    heads = [line for line in seen.out.splitlines() if line.startswith("* bad.hcl:")]
    assert [line.split(":")[1] for line in heads] == ["2", "3", "5", "9", "10"]
    assert "Did you mean 'type'?" in heads[0]
    assert "  2 |   tpye = " in seen.out
    assert "^^^^" in seen.out


def test_a_job_with_mistakes_is_not_submitted() -> None:
    Path("bad.hcl").write_text(FIVE_MISTAKES)

    seen = fedsched("job run bad.hcl")

    assert seen.code == 1
    assert seen.agent.asked == []
    assert "bad.hcl:9:26" in seen.err


def test_warnings_do_not_make_a_job_invalid() -> None:
    seen = validated(ODD_NETWORK)

    assert seen.code == 0
    assert seen.out.startswith('Job Warnings:\n* bad.hcl:4:15: group "g": network mode "odd" is not known')
    assert seen.out.endswith("Job validation successful\n")


def test_json_jobs_are_validated_too() -> None:
    seen = fedsched("job validate -json -", stdin=json.dumps(WEB))

    assert seen.code == 1
    assert '* TaskGroups[0].Tasks: group "front": Missing tasks for task group' in seen.out


@pytest.mark.parametrize("flag", ["", "-short ", "-connect ", "-connect -short "])
def test_the_example_job_is_valid(flag: str) -> None:
    assert fedsched(f"job init {flag}").out.startswith("Example job file written to example.nomad.hcl\n")

    seen = fedsched("job validate example.nomad.hcl")

    assert (seen.code, seen.out) == (0, "Job validation successful\n")


def test_an_existing_file_is_not_overwritten_by_the_example() -> None:
    Path("mine.hcl").write_text("precious")

    seen = fedsched("job init mine.hcl")

    assert seen.code == 1
    assert "mine.hcl exists already" in seen.err
    assert Path("mine.hcl").read_text() == "precious"
    assert "cannot be written" in fedsched("job init none/x.hcl").err

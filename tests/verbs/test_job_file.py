from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from fedsched.model.errors import BadRequest
from fedsched.verbs.job_file import BadJobFile, read_job

WEB = {"ID": "web", "Type": "batch", "TaskGroups": [{"Name": "front", "Count": 2}]}


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("value", [WEB, {"Job": WEB}, {"job": WEB}])
def test_a_job_may_be_wrapped_or_bare(in_tmp: Path, value: object) -> None:
    Path("web.json").write_text(json.dumps(value))

    job, unknown = read_job("web.json", io.StringIO())

    assert (job.id, job.type, job.task_groups[0].name, job.task_groups[0].count) == ("web", "batch", "front", 2)
    assert unknown == []


def test_a_dash_reads_standard_input() -> None:
    assert read_job("-", io.StringIO(json.dumps(WEB)))[0].id == "web"


def test_members_that_no_field_claims_are_named() -> None:
    _, unknown = read_job("-", io.StringIO(json.dumps(WEB | {"Priorty": 5})))

    assert unknown == ["Job.Priorty"]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            b'{"ID": "web",\n  "Type" "batch"}',
            "a.json: line 2, column 10: Expecting ':' delimiter (job files are JSON)",
        ),
        (
            b'job "web" {}',
            "a.json: line 1, column 1: Expecting value (this version reads JSON job files; HCL arrives later)",
        ),
        (b'{"ID": "\xff"}', "a.json: byte 8 is not UTF-8 (job files are JSON)"),
        (b"[" * 100_000, "a.json: nested too deeply (job files are JSON)"),
        (b"[]", 'a.json: the job is no JSON object (write it as {"Job": {"ID": ...}})'),
        (b"{}", 'a.json: the job has no ID (give it one with "ID": "web")'),
        (b'{"ID": 7}', "Job.ID: expected string, got integer 7"),
        (b" " * (8 * 1024 * 1024 + 1), "a.json: larger than 8388608 bytes (is this a job file?)"),
    ],
)
def test_a_wrong_job_file_is_refused_with_the_place(in_tmp: Path, data: bytes, message: str) -> None:
    Path("a.json").write_bytes(data)

    with pytest.raises(BadRequest) as caught:
        read_job("a.json", io.StringIO())

    assert str(caught.value) == message


def test_a_missing_file_is_named(in_tmp: Path) -> None:
    with pytest.raises(BadJobFile, match=r"none\.hcl: cannot be read: No such file"):
        read_job("none.hcl", io.StringIO())

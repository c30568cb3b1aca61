"""Every recorded job file gives the recorded job, but for the few where we differ on purpose."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from fedsched.jobspec.jobfile import parse_job, parse_tree
from fedsched.jobspec.problems import JobfileProblems
from fedsched.model.api_form import to_api
from fedsched.model.job_defaults import canonicalise
from fedsched.model.job_submission import from_submission
from tests.jobspec.job_vectors import JobCase, essence, job_cases

CASES = {case.name: case for case in job_cases()}
ON_PURPOSE = {"runtime-interp", "network-reserved-ports", "secret-blocks", "affinity-canonical"}


def parsed(case: JobCase) -> dict[str, Any]:
    return parse_tree(case.hcl, case.variables, canonicalize=case.canonicalize)


@pytest.mark.parametrize("name", sorted(CASES.keys() - ON_PURPOSE))
def test_a_recorded_job_file_gives_the_recorded_job(name: str) -> None:
    assert essence(parsed(CASES[name])) == essence(CASES[name].job)


@pytest.mark.parametrize("name", sorted(CASES.keys() - {"affinity-canonical"}))
def test_every_recorded_job_file_becomes_a_job_that_keeps_what_was_said(name: str) -> None:
    """Through the record and back: nothing is lost but what the record fills in or merges."""
    job = parse_job(CASES[name].hcl, CASES[name].variables)
    said = parsed(CASES[name])

    assert (job.id, job.name) == (said["ID"], said["Name"])
    assert [group.name for group in job.task_groups] == [group["Name"] for group in said.get("TaskGroups", [])]
    again = from_submission(to_api(job))
    assert canonicalise(again) == canonicalise(job)


def test_all_recorded_files_are_there() -> None:
    assert len(CASES) == 82
    assert CASES.keys() > ON_PURPOSE


def test_reserved_ports_and_ports_are_both_kept() -> None:
    network = parsed(CASES["network-reserved-ports"])["TaskGroups"][0]["Networks"][0]

    assert [port["Label"] for port in network["ReservedPorts"]] == ["ssh"]
    assert [port["Label"] for port in network["DynamicPorts"]] == ["dyn"]


def test_secrets_of_all_levels_add_up() -> None:
    none, own = parsed(CASES["secret-blocks"])["TaskGroups"][0]["Tasks"]

    assert [secret["Name"] for secret in none["Secrets"]] == ["grp", "shared"]
    assert [secret["Name"] for secret in own["Secrets"]] == ["mine", "grp", "shared"]


def test_an_affinity_weight_out_of_range_is_refused_where_it_stands() -> None:
    with pytest.raises(JobfileProblems) as caught:
        parsed(CASES["affinity-canonical"])

    assert [str(problem.span) for problem in caught.value.problems] == ["job.hcl:13:18"]


def test_a_brace_after_a_runtime_reference_is_not_doubled() -> None:
    expected = copy.deepcopy(CASES["runtime-interp"].job)
    task = expected["TaskGroups"][0]["Tasks"][0]
    task["Config"]["args"][1] = "--x={${node.unique.id}}"
    task["Env"]["JS"] = "function f() { return ${NOMAD_ALLOC_ID} }"

    assert essence(parsed(CASES["runtime-interp"])) == essence(expected)

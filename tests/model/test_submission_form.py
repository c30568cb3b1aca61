"""The front end's defaults change nothing that the server would not have said itself."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from fedsched.model.api_form import tidy
from fedsched.model.job import Job
from fedsched.model.job_defaults import canonicalise
from fedsched.model.job_submission import from_submission
from fedsched.model.submission_form import with_defaults
from tests.model.fixtures import load

SENT = {case["name"]: tidy(Job, case["sent"]) for case in load("submissions")["submissions"]}
RICH: dict[str, Any] = {
    "ID": "rich",
    "Type": "batch",
    "Periodic": {"Spec": "@daily"},
    "ParameterizedJob": {"MetaRequired": ["a"]},
    "Affinities": [{"LTarget": "a", "RTarget": "b", "Operand": "="}],
    "Spreads": [{"Attribute": "a"}],
    "TaskGroups": [
        {
            "Name": "g",
            "Scaling": {"Min": 2, "Max": 3},
            "Disconnect": {"LostAfter": 5},
            "Volumes": {"v": {"Type": "host", "Source": "s"}},
            "Services": [{"CheckRestart": {"Limit": 3}, "Checks": [{"Type": "tcp"}, {"CheckRestart": {"Grace": 5}}]}],
            "Tasks": [
                {
                    "Name": "t",
                    "Resources": {"Cores": 2, "Devices": [{"Name": "gpu", "Affinities": [{"LTarget": "a"}]}]},
                    "Templates": [
                        {"ChangeMode": "signal", "ChangeScript": {"Command": "x"}},
                        {"ChangeSignal": "sigint"},
                    ],
                    "Artifacts": [{"GetterSource": "https://x/a?b=c", "GetterMode": "file"}, {"GetterSource": "y"}],
                    "VolumeMounts": [{"Volume": "v"}],
                    "Vault": {"Role": "r"},
                    "Consul": {},
                    "Services": [{"Name": "${BASE}"}],
                }
            ],
            "Consul": {"Partition": "p"},
        }
    ],
}


@pytest.mark.parametrize("name", SENT)
def test_a_filled_submission_becomes_the_same_job(name: str) -> None:
    assert canonicalise(from_submission(with_defaults(SENT[name]))) == canonicalise(from_submission(SENT[name]))


def test_filling_in_leaves_the_original_alone_and_may_be_repeated() -> None:
    before = copy.deepcopy(RICH)

    once = with_defaults(RICH)

    assert before == RICH
    assert with_defaults(once) == once


def test_what_depends_on_the_rest_is_filled_in() -> None:
    job = with_defaults(RICH)
    (group,) = job["TaskGroups"]
    (task,) = group["Tasks"]

    assert (job["Priority"], job["Region"], job["Namespace"]) == (50, "global", "default")
    assert "Update" not in job
    assert job["Periodic"]["TimeZone"] == "UTC"
    assert job["ParameterizedJob"]["Payload"] == "optional"
    assert (job["Affinities"][0]["Weight"], job["Spreads"][0]["Weight"]) == (50, 50)
    assert group["Count"] == 2
    assert group["RestartPolicy"]["Attempts"] == task["RestartPolicy"]["Attempts"] == 3
    assert group["Disconnect"] == {"LostAfter": 5, "Replace": True, "Reconcile": "best_score"}
    assert group["Volumes"]["v"]["Name"] == "v"
    assert group["Consul"] == {"Cluster": "default", "Namespace": "", "Partition": "p"}
    assert task["Consul"]["Cluster"] == task["Vault"]["Cluster"] == "default"
    assert (task["Resources"]["CPU"], task["Resources"]["Devices"][0]["Count"]) == (0, 1)
    assert [template["ChangeSignal"] for template in task["Templates"]] == ["SIGHUP", "SIGINT"]
    assert task["Templates"][0]["ChangeScript"]["Timeout"] == 5 * 10**9
    assert [artifact["RelativeDest"] for artifact in task["Artifacts"]] == ["local/a", "local/"]
    assert task["VolumeMounts"][0]["PropagationMode"] == "private"
    assert (group["Services"][0]["Name"], group["Services"][0]["Provider"]) == ("rich-g", "consul")
    assert [check["CheckRestart"]["Limit"] for check in group["Services"][0]["Checks"]] == [3, 3]
    assert [check["CheckRestart"]["Grace"] for check in group["Services"][0]["Checks"]] == [10**9, 5]

"""Job files with what Nomad made of them, recorded; and what "the same job" means."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

FOLDER = Path(__file__).parents[2] / "fixtures" / "hcl"

ANYWHERE = frozenset(
    {
        *("AllowTokenExpiration", "Chown", "CreateIndex", "DisableDefaultTCPCheck", "Dispatched", "EnableTagOverride"),
        *("EnvoyGatewayBindTaggedAddresses", "EnvoyGatewayNoDefaultBind", "Expose", "FailuresBeforeCritical"),
        *(
            "FailuresBeforeWarning",
            "GRPCUseTLS",
            "IgnoreCollision",
            "JobModifyIndex",
            "Leader",
            "ModifyIndex",
            "Native",
        ),
        *("Percent", "PerAlloc", "PreventRescheduleOnLost", "Sidecar", "Stable", "Stop", "SuccessBeforePassing"),
        *("TLSSkipVerify", "TTL", "To", "Value", "Version"),
    }
)
WITHIN = {
    "Identity": {"Env", "File"},
    "Identities": {"Env", "File"},
    "Tasks": {"ShutdownDelay"},
    "Volumes": {"ReadOnly", "Sticky"},
    "Checks": {"Interval", "Timeout"},
    "Proxy": {"LocalServicePort"},
    "Weights": {"Passing", "Warning"},
    "CheckRestart": {"Limit", "IgnoreWarnings"},
}
"""Where Nomad's own form cannot tell zero from absent."""


class JobCase(NamedTuple):
    name: str
    hcl: str
    variables: str
    canonicalize: bool
    job: dict[str, Any]


def job_cases() -> list[JobCase]:
    found = []
    for path in sorted((FOLDER / "jobs").glob("*.hcl")):
        data = json.loads(path.with_suffix(".json").read_text())
        hcl = path.read_bytes().decode()
        found.append(JobCase(path.stem, hcl, data.get("variables", ""), data["canonicalize"], data["job"]))
    return found


def error_cases() -> list[dict[str, Any]]:
    cases: list[dict[str, Any]] = json.loads((FOLDER / "errors.json").read_text())
    return cases


def essence(value: Any, within: str = "") -> Any:
    """A job without what makes no difference: null, absent and empty are one; so are zero and absent, where noted."""
    if isinstance(value, dict):
        inner = {key: essence(item, within if _is_name(within) else key) for key, item in value.items()}
        return {key: item for key, item in inner.items() if not _is_nothing(key, item, within)}
    if isinstance(value, list):
        return [essence(item, within) for item in value]
    return value


def _is_name(within: str) -> bool:
    """Whether the keys of this dict are the user's own names, so that what holds for its values comes from above."""
    return within == "Volumes"


def _is_nothing(key: str, value: Any, within: str) -> bool:
    if value is None or value == "" or value == [] or value == {}:
        return True
    return value in (0, False) and (key in ANYWHERE or key in WITHIN.get(within, ()))

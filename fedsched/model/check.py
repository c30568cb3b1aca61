"""How a check of a service went, as a client reports it."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from fedsched.model.record import Record, TimeNs


class CheckStatus(StrEnum):
    PENDING = "pending"
    SUCCESS = "success"
    WARNING = "warning"
    FAILURE = "failure"


class CheckMode(StrEnum):
    """What a check's failure means."""

    HEALTHINESS = "healthiness"
    """An unhealthy service holds a deployment back."""
    READINESS = "readiness"
    """Only who should be asked; a deployment does not mind."""


class CheckResult(Record):
    """The latest result of one check."""

    id: str
    check: str = ""
    service: str = ""
    task: Annotated[str, "Empty for services of a group."] = ""
    group: Annotated[str, "The allocation's name."] = ""
    mode: CheckMode = CheckMode.HEALTHINESS
    status: CheckStatus = CheckStatus.PENDING
    status_code: Annotated[int, "Of an http answer or a script."] = 0
    output: str = ""
    timestamp_ns: TimeNs = 0
    on_update: str = "require_healthy"

    @property
    def lets_pass(self) -> bool:
        """Whether a deployment may go on, as far as this check is concerned."""
        match self.on_update:
            case "ignore":
                return True
            case "ignore_warnings":
                return self.status in (CheckStatus.SUCCESS, CheckStatus.WARNING)
            case _:
                return self.status is CheckStatus.SUCCESS

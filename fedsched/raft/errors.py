"""How a proposal or a read can end other than well; each outcome says whether trying again is safe."""

from __future__ import annotations

from fedsched.model.errors import BadRequest, Busy, Conflict, FedschedError, TooLarge, Unavailable
from fedsched.raft import messages


class NotLeader(Unavailable):
    """This server does not lead; `leader` is the id of the one that does, if known."""

    code = "not_leader"

    def __init__(self, message: str, *, leader: str | None = None, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.leader = leader


class ProposalRefused(Unavailable):
    """Never appended to any log: trying again is safe."""

    code = "refused"


class ProposalLost(Unavailable):
    """Another entry was committed in its place: it never happened, trying again is safe."""

    code = "lost"


class OutcomeUnknown(FedschedError):
    """Appended, then leadership was lost or time ran out: it may have happened. Retry only with the same request id."""

    code = "outcome_unknown"
    http_status = 504


class NoQuorumRead(Unavailable):
    """No leader could confirm the read; a stale read would still be answered."""

    code = "no_quorum"


class DiskPressure(Unavailable):
    """The data directory's disk is nearly full: new writes are refused, everything else goes on."""

    code = "disk_pressure"
    http_status = 507


def refusal(refused: messages.Refused) -> FedschedError:
    """The error that tells a caller what `refused` means."""
    match refused.reason:
        case messages.REFUSED_NOT_LEADER:
            return NotLeader("this server is not the leader", leader=refused.leader)
        case messages.REFUSED_BUSY:
            return Busy("too many bytes wait for commit", hint="try again in a moment")
        case messages.REFUSED_TOO_LARGE:
            return TooLarge(f"too large: {refused.detail}", hint="split the request")
        case messages.REFUSED_CONFIG_CHANGED:
            return Conflict(f"{refused.reason}: {refused.detail}", hint="look at the set again")
        case messages.REFUSED_BAD_CHANGE | messages.REFUSED_NO_TARGET:
            hint = "`fedsched operator raft list-peers` shows the set"
            return BadRequest(refused.detail or refused.reason, hint=hint)
        case reason:
            detail = f" ({refused.detail})" if refused.detail else ""
            return ProposalRefused(f"refused: {reason}{detail}", hint="nothing was changed; try again")

"""Marks for paths that only rare schedules reach.

`rare.sometimes("name")` does nothing in production. The simulator and the tests put a counter in its place
(`rare.sometimes = counts.note`) and so learn whether their worlds ever visit such a path: a check that never meets the
hard case proves little. Call it through the module, as above, or the replacement is not seen.
"""

from __future__ import annotations

from collections.abc import Callable


def ignore(name: str) -> None:
    """What production does with a mark."""


sometimes: Callable[[str], None] = ignore

NAMES: frozenset[str] = frozenset(
    {
        "abandon_transfer",
        "answer_stale_leader",
        "append_below_log_start",
        "auto_leave_joint",
        "commit_beyond_durable",
        "config_rolled_back",
        "departed_server_told",
        "digest_minority",
        "expired_follower_read",
        "flap_guard_widens",
        "force_vote",
        "hand_over_after_removal",
        "hint_at_commit",
        "ignore_vote_in_lease",
        "leader_without_vote",
        "learner_grants_vote",
        "leaver_campaigns",
        "lost_is_certain",
        "old_term_not_committed",
        "overwritten_came_back",
        "peer_unreachable_in_replicate",
        "prevote_lost",
        "read_before_establishment",
        "resend_snapshot_offer",
        "skip_known_entries",
        "snapshot_fallen_behind",
        "snapshot_offer_not_needed",
        "snapshot_over_matching_log",
        "snapshot_replaces_log",
        "stale_refusal",
        "step_down_without_quorum",
        "stored_in_old_term",
        "stored_since_overwritten",
        "timeout_now",
        "truncate_conflict",
        "uncommitted_limit",
        "window_full",
    }
)
"""Every mark in the core; a test compares this with the source."""

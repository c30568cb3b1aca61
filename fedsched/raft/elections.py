"""How a server comes to lead: time-outs, prevotes, votes, and the duty to answer those of others."""

from __future__ import annotations

from fedsched.raft import rare
from fedsched.raft.campaign import Campaign
from fedsched.raft.ground import CANDIDATE, FOLLOWER, LEADER, PRECANDIDATE
from fedsched.raft.leading import Leading
from fedsched.raft.messages import PreVote, PreVoteReply, TimeoutNow, Vote, VoteReply
from fedsched.raft.quorum import Outcome


class Elections(Leading):
    """The moves of voters, candidates and those they ask."""

    def _tick_election(self) -> None:
        self._elapsed += 1
        has_nobody_to_wait_for = self.role == FOLLOWER and self.config.is_alone(self.server_id)
        if self._elapsed < self._timeout and not has_nobody_to_wait_for:
            return
        if self._may_campaign():
            self._ask_prevotes()
        elif self.leader is not None:
            self._become_follower(self.term, None)
        else:
            self._reset_timer()

    def _may_campaign(self) -> bool:
        """Voters may; so may a server whose vote ends with a change that is not yet known to be committed.

        It can be the only one that holds that change: the others then need its vote, which it must refuse to their
        shorter logs, so nobody but itself can win (dissertation 4.2.2).
        """
        if self.config.is_voter(self.server_id):
            return True
        is_leaving = self.history.at(self.commit)[0].is_voter(self.server_id)
        if is_leaving:
            rare.sometimes("leaver_campaigns")
        return is_leaving

    def _voters(self) -> list[str]:
        return sorted((self.config.voters | self.config.outgoing) - {self.server_id})

    def _is_in_lease(self) -> bool:
        """Whether there is a live leader as far as this server can tell; then nobody needs an election."""
        return self.role == LEADER or (self.leader is not None and self._elapsed < self.settings.election_ticks)

    # ------------------------------------------------------------- campaigning

    def _ask_prevotes(self) -> None:
        """Find out whether an election could be won before disturbing anybody with a new term (dissertation 9.6)."""
        self.counters["prevotes_asked"] += 1
        self._move_to(PRECANDIDATE, None)
        self._reset_timer()
        self._campaign = Campaign()
        self._campaign.note(self.server_id, True)
        if self._campaign.outcome(self.config) is Outcome.WON:
            self._ask_votes(force=False)
            return
        for voter in self._voters():
            self._send(
                PreVote(
                    sender=self.server_id,
                    to=voter,
                    term=self.term + 1,
                    last_index=self.log.last,
                    last_term=self.log.last_term,
                )
            )

    def _ask_votes(self, *, force: bool) -> None:
        """Campaign in a new term. Our own vote is a message like the others: it counts once it is durable."""
        self.counters["elections"] += 1
        self.term += 1
        self.vote = self.server_id
        self._hard_moved = True
        self._move_to(CANDIDATE, None)
        self._reset_timer()
        self._campaign = Campaign()
        self._send_after_store(VoteReply(sender=self.server_id, to=self.server_id, term=self.term, granted=True))
        for voter in self._voters():
            self._send_after_store(
                Vote(
                    sender=self.server_id,
                    to=voter,
                    term=self.term,
                    last_index=self.log.last,
                    last_term=self.log.last_term,
                    force=force,
                )
            )

    def _on_prevote_reply(self, reply: PreVoteReply) -> None:
        if reply.granted:
            if self.role == PRECANDIDATE and reply.term == self.term + 1:
                self._count(reply.sender, True)
        elif reply.term > self.term:
            self._become_follower(reply.term, None)
        elif self.role == PRECANDIDATE:
            self.counters["prevotes_refused"] += 1
            self._count(reply.sender, False)

    def _on_vote_reply(self, reply: VoteReply) -> None:
        if self.role == CANDIDATE:
            self._count(reply.sender, reply.granted)

    def _count(self, voter: str, granted: bool) -> None:
        campaign = self._campaign
        assert campaign is not None, f"a {self.role} has a ballot"
        campaign.note(voter, granted)
        outcome = campaign.outcome(self.config)
        if outcome is Outcome.LOST:
            if self.role == PRECANDIDATE:
                rare.sometimes("prevote_lost")
            self._become_follower(self.term, None)
        elif outcome is Outcome.WON:
            if self.role == PRECANDIDATE:
                self._ask_votes(force=False)
            else:
                self._become_leader()

    def _on_timeout_now(self, message: TimeoutNow) -> None:
        """The leader hands over: campaign at once, and past anybody's lease."""
        if message.sender == self.leader and self.config.is_voter(self.server_id):
            rare.sometimes("timeout_now")
            self._ask_votes(force=True)

    # --------------------------------------------------------------- answering

    def _on_prevote(self, request: PreVote) -> None:
        """Say whether we would vote for the sender; nothing is recorded and no term changes."""
        if self._is_in_lease():
            self.counters["votes_ignored"] += 1
            return
        may_vote = request.term > self.term or (
            request.term == self.term and (self.vote == request.sender or (self.vote is None and self.leader is None))
        )
        granted = may_vote and self.log.is_current(request.last_index, request.last_term)
        self._send(
            PreVoteReply(
                sender=self.server_id,
                to=request.sender,
                term=request.term if granted else self.term,
                granted=granted,
            )
        )

    def _on_vote(self, request: Vote) -> None:
        """Grant one vote per term, to a log at least as complete as ours. Learners answer too (see the theory)."""
        may_vote = self.vote == request.sender or (self.vote is None and self.leader is None)
        if not may_vote or not self.log.is_current(request.last_index, request.last_term):
            self._refuse_vote(request)
            return
        if not self.config.is_voter(self.server_id):
            rare.sometimes("learner_grants_vote")
        if self.vote is None:
            self.vote = request.sender
            self._hard_moved = True
        self._elapsed = 0
        self._send_after_store(VoteReply(sender=self.server_id, to=request.sender, term=self.term, granted=True))

    def _refuse_vote(self, request: Vote) -> None:
        self._send(VoteReply(sender=self.server_id, to=request.sender, term=self.term, granted=False))

    def _ignores(self, request: Vote) -> bool:
        """A vote request in a new term counts for nothing while a leader lives, unless that leader asked for it."""
        if not self._is_in_lease():
            return False
        if request.force:
            rare.sometimes("force_vote")
            return False
        rare.sometimes("ignore_vote_in_lease")
        self.counters["votes_ignored"] += 1
        return True

"""The planted bugs: mistakes that Raft implementations have shipped, and a few that ours would be tempted by.

Sorted by what they break. Each must be found by `python -m fedsched.sim mutants` within its budget of seeds.
"""

from __future__ import annotations

from fedsched.sim.mutants import Mutant, Patch

GROUND = "fedsched.raft.ground"
CORE = "fedsched.raft.core"
ELECTIONS = "fedsched.raft.elections"
CAMPAIGN = "fedsched.raft.campaign"
QUORUM = "fedsched.raft.quorum"
FOLLOWING = "fedsched.raft.following"
LEADING = "fedsched.raft.leading"
OFFICE = "fedsched.raft.office"
READS = "fedsched.raft.reads"
MEMBERSHIP = "fedsched.raft.membership"
UNSETTLED = "fedsched.raft.unsettled"
PROGRESS = "fedsched.raft.progress"
MACHINE = "fedsched.sim.machine"


def _mutant(name: str, what: str, *patches: tuple[str, str, str], theme: str = "") -> Mutant:
    return Mutant(name, what, tuple(Patch(*patch) for patch in patches), theme)


EMPTY_PROBES = (
    OFFICE,
    "        if progress.next <= self._log.last:\n"
    "            out.append(self._append(progress, commit)[0])\n"
    "        else:\n",
    "        if progress.next >= 0:\n",
)
"""No bug by itself: a leader that first asks with an empty message leaves a follower's conflicting tail alone."""


VOTES = (
    _mutant(
        "forget_vote_on_step_down",
        "every change to follower forgets the vote, also within a term",
        (
            GROUND,
            "            self.term = term\n            self.vote = None\n            self._hard_moved = True\n",
            "            self.term = term\n        self.vote = None\n        self._hard_moved = True\n",
        ),
    ),
    _mutant(
        "clear_vote_at_equal_term",
        "a second candidate of the same term gets the vote too",
        (
            ELECTIONS,
            "        may_vote = self.vote == request.sender or (self.vote is None and self.leader is None)\n"
            "        if not may_vote or",
            "        may_vote = self.leader is None\n        if not may_vote or",
        ),
        (
            ELECTIONS,
            "        if self.vote is None:\n            self.vote = request.sender",
            "        if self.vote != request.sender:\n            self.vote = request.sender",
        ),
    ),
    _mutant(
        "vote_not_restored",
        "the vote is forgotten over a restart",
        (GROUND, "self.vote = hard.vote if hard.term == self.term else None", "self.vote = None"),
    ),
    _mutant(
        "term_not_restored",
        "the term after a restart is taken from the log alone",
        (GROUND, "self.term = max(hard.term, self.log.last_term)", "self.term = self.log.last_term"),
    ),
    _mutant(
        "vote_for_a_shorter_log",
        "a candidate's log is not compared with the voter's",
        (
            ELECTIONS,
            "if not may_vote or not self.log.is_current(request.last_index, request.last_term):",
            "if not may_vote:",
        ),
        (
            ELECTIONS,
            "        granted = may_vote and self.log.is_current(request.last_index, request.last_term)\n",
            "        granted = may_vote\n",
        ),
    ),
    _mutant(
        "vote_compares_length_only",
        "the longer log wins, whatever the terms at its end",
        (
            "fedsched.raft.log",
            "return (last_term, last_index) >= (self.last_term, self.last)",
            "return last_index >= self.last",
        ),
    ),
    _mutant(
        "vote_before_sync",
        "a vote leaves before it is durable",
        (
            ELECTIONS,
            "self._send_after_store(VoteReply(sender=self.server_id, to=request.sender,",
            "self._send(VoteReply(sender=self.server_id, to=request.sender,",
        ),
    ),
    _mutant(
        "campaign_before_sync",
        "vote requests leave before term and own vote are durable",
        (
            ELECTIONS,
            "            self._send_after_store(\n                Vote(",
            "            self._send(\n                Vote(",
        ),
    ),
    _mutant(
        "stale_vote_reply_counted",
        "a grant of an older term counts in the present one",
        (
            CORE,
            "        elif message.term < self.term:\n",
            "        elif message.term < self.term and kind is VoteReply:\n"
            "            self._handlers[kind](message)\n"
            "        elif message.term < self.term:\n",
        ),
    ),
    _mutant(
        "replies_counted",
        "grants are counted, not collected by voter",
        (
            CAMPAIGN,
            "        if voter not in self._granted and voter not in self._refused:\n"
            "            (self._granted if granted else self._refused).add(voter)\n",
            "        names = self._granted if granted else self._refused\n        names.add(f'{voter}{len(names)}')\n",
        ),
        (
            CAMPAIGN,
            "        return vote_outcome(config, self._granted, self._refused)\n",
            "        won = 2 * len(self._granted) > len(config.voters)\n"
            "        return Outcome.WON if won else vote_outcome(config, self._granted, self._refused)\n",
        ),
    ),
    _mutant(
        "majority_over_peers_only",
        "a majority of the others is taken for a majority",
        (QUORUM, "    return voters // 2 + 1\n", "    return max(1, voters // 2)\n"),
    ),
)

LOG = (
    _mutant(
        "acknowledge_before_sync",
        "an append is acknowledged before it is durable",
        (
            FOLLOWING,
            "self._send_after_store(AppendReply(sender=self.server_id, to=leader, term=self.term, "
            "ok=True, index=index))",
            "self._send(AppendReply(sender=self.server_id, to=leader, term=self.term, ok=True, index=index))",
        ),
    ),
    _mutant(
        "acknowledge_own_last_index",
        "a follower reports its own last index as verified",
        (FOLLOWING, "self._acknowledge(message.sender, verified)", "self._acknowledge(message.sender, self.log.last)"),
        EMPTY_PROBES,
    ),
    _mutant(
        "skip_prev_check",
        "entries are taken without comparing the one before them",
        (FOLLOWING, "elif not log.matches(prev, message.prev_term):", "elif prev > log.last:"),
    ),
    _mutant(
        "duplicate_truncates",
        "a late duplicate cuts off what follows it, also matching and committed entries",
        (FOLLOWING, "                if log.term(entry.index) != entry.term:\n", "                if known >= 0:\n"),
        (FOLLOWING, "                if first <= self.commit:\n", "                if first < 0:\n"),
    ),
    _mutant(
        "conflict_not_truncated",
        "entries in conflict with the leader's are kept",
        (
            FOLLOWING,
            "                if log.term(entry.index) != entry.term:\n",
            "                if log.term(entry.index) is None:\n",
        ),
    ),
    _mutant(
        "commit_old_term_by_counting",
        "an entry of an earlier term is committed because a majority holds it",
        (LEADING, "        if self.log.term(index) != self.term:\n", "        if self.log.term(index) is None:\n"),
    ),
    _mutant(
        "count_own_unsynced_entries",
        "a leader counts its own entries before they are durable",
        (OFFICE, "self._own.match = self._log.durable", "self._own.match = self._log.last"),
    ),
    _mutant(
        "apply_beyond_durable",
        "a follower applies what is committed elsewhere but not yet on its own disk",
        (GROUND, "safe = min(self.commit, self.log.durable)", "safe = self.commit"),
    ),
    _mutant(
        "stored_ignores_term",
        "a late completion of an overwritten write is taken for one of the present log",
        (CORE, "        if at_term != self.term:\n", "        if at_term < 0:\n"),
        theme="disks",
    ),
    _mutant(
        "stored_ignores_overwriting",
        "a completion is believed without looking at what the log holds now",
        (CORE, "            if log.matches(upto_index, upto_term):\n", "            if upto_index <= log.last:\n"),
    ),
    _mutant(
        "append_commit_not_capped",
        "a follower commits what it has not compared with the leader's log",
        (
            FOLLOWING,
            "        is_news = min(message.commit, verified) > self.commit\n",
            "        verified, compared = min(message.commit, log.last), verified\n"
            "        is_news = verified > self.commit\n",
        ),
        (
            FOLLOWING,
            "            self._commit_to(min(message.commit, verified))\n",
            "            self._commit_to(verified)\n        verified = compared\n",
        ),
        EMPTY_PROBES,
    ),
    _mutant(
        "heartbeat_commit_not_capped",
        "a heartbeat tells a commit index that its receiver may not hold",
        (OFFICE, "commit=min(commit, progress.match),", "commit=commit,"),
        (FOLLOWING, "        if message.commit > self.log.last:\n", "        if message.commit < 0:\n"),
        (
            FOLLOWING,
            "        if message.commit > self.commit:\n            self._commit_to(message.commit)\n",
            "        if min(message.commit, self.log.last) > self.commit:\n"
            "            self._commit_to(min(message.commit, self.log.last))\n",
        ),
    ),
    _mutant(
        "match_from_sent",
        "what was sent counts as held",
        (
            PROGRESS,
            "        self.inflight_bytes += size\n        self.next = last_index + 1\n",
            "        self.inflight_bytes += size\n"
            "        self.next = last_index + 1\n"
            "        self.match = last_index\n",
        ),
    ),
    _mutant(
        "called_lost_when_unsettled",
        "whatever a leader leaves uncommitted is reported as lost",
        (
            GROUND,
            "        self._unsettled.add(max(office.start, self.commit + 1), self.log.last, office.term)\n",
            "        self._lost.append(Lost(max(office.start, self.commit + 1), self.log.last, office.term))\n",
        ),
    ),
)

MEMBERS = (
    _mutant(
        "config_before_own_commit",
        "the membership changes before the leader has committed in its own term",
        (
            LEADING,
            "        if self.commit < office.start:\n            return Refused(",
            "        if self.commit < 0:\n            return Refused(",
        ),
    ),
    _mutant(
        "two_uncommitted_configs",
        "a second change begins while the first is open",
        (
            LEADING,
            "        if self.history.index > self.commit or self.config.is_joint:\n",
            "        if self.config.is_joint:\n",
        ),
    ),
    _mutant(
        "joint_vote_in_one_set",
        "an election during a joint change needs the new voters only",
        (
            QUORUM,
            "return _has_majority(config.voters, ids) and (not config.outgoing or _has_majority(config.outgoing, ids))",
            "return _has_majority(config.voters, ids)",
        ),
        theme="membership",
    ),
    _mutant(
        "joint_commit_in_one_set",
        "a commit during a joint change needs either set",
        (OFFICE, "        return min(majority_reached(", "        return max(majority_reached("),
    ),
    _mutant(
        "change_without_joint",
        "voters change in one step",
        (
            MEMBERSHIP,
            "    return _made(config, voters, config.voters, learners, config.servers)\n",
            "    return _made(config, voters, frozenset(), learners, config.servers)\n",
        ),
    ),
    _mutant(
        "leaves_joint_uncommitted",
        "the joint config is left before it is committed",
        (LEADING, "        if self.history.index <= index:\n", "        if self.history.index <= self.log.last:\n"),
    ),
    _mutant(
        "leader_without_vote_counts_itself",
        "a leader that was removed or demoted still counts its own log",
        (OFFICE, "for server_id in sorted(group)]", "for server_id in sorted(group | {self._server_id})]"),
    ),
    _mutant(
        "ignores_uncommitted_config",
        "a new leader goes by the config it knows to be committed",
        (
            LEADING,
            "Office(self.server_id, self.term, self.log, self.settings, self.config, self.now)",
            "Office(self.server_id, self.term, self.log, self.settings,"
            " self.history.at(max(self.commit, 1))[0], self.now)",
        ),
        theme="membership",
    ),
    _mutant(
        "config_survives_truncation",
        "a config stays in force though its entry was cut off",
        (GROUND, "        if self.history.truncate(first):\n", "        if first < 0:\n"),
        theme="membership",
    ),
    _mutant(
        "snapshot_with_newest_config",
        "a snapshot carries a config from after its end",
        (
            MEMBERSHIP,
            "        return self._configs[position], self._indexes[position]\n",
            "        return self._configs[-1], self._indexes[position]\n",
        ),
    ),
    _mutant(
        "joint_never_left",
        "nobody ends a joint change",
        (LEADING, "        if self.config.is_joint:\n            rare", "        if self.term < 0:\n            rare"),
    ),
    _mutant(
        "learner_refuses_votes",
        "a learner that was promoted without knowing it withholds its vote",
        (
            ELECTIONS,
            "        if not may_vote or not",
            "        if not may_vote or not self.config.is_voter(self.server_id) or not",
        ),
        theme="membership",
    ),
    _mutant(
        "leaving_server_never_campaigns",
        "the only holder of an uncommitted removal waits for others who need its vote",
        (
            ELECTIONS,
            "is_leaving = self.history.at(self.commit)[0].is_voter(self.server_id)",
            "is_leaving = False",
        ),
        theme="membership",
    ),
)

READS_AND_STATE = (
    _mutant(
        "read_without_round",
        "a leader answers reads without asking whether it still leads",
        (
            LEADING,
            "        if office.is_round_confirmed():\n            self._answer_round(office)\n        else:",
            "        if office.reads.is_round_out:\n            self._answer_round(office)\n        else:",
        ),
        theme="reads",
    ),
    _mutant(
        "read_before_own_commit",
        "a new leader answers reads before it has committed in its own term",
        (
            LEADING,
            "        if not office.reads.can_start or self.commit < office.start:\n",
            "        if not office.reads.can_start:\n",
        ),
    ),
    _mutant(
        "read_confirmed_by_any_reply",
        "a reply to an older heartbeat confirms a younger read",
        (
            LEADING,
            "        if reply.round > progress.round:\n            progress.round = reply.round\n",
            "        if office.reads.round > progress.round:\n            progress.round = office.reads.round\n",
        ),
    ),
    _mutant(
        "follower_reads_locally",
        "a follower answers reads from what it knows",
        (
            FOLLOWING,
            "        elif self.leader is not None and self._reads.add(ctx):\n            self._dirty = True\n",
            "        elif self.leader is not None and self.commit:\n"
            "            self._answer(Reader('', ctx), self.commit)\n",
        ),
    ),
    _mutant(
        "answer_to_an_older_question",
        "a follower gives a late answer to reads that came after the question",
        (READS, "        if question != self._question:\n            return []\n", ""),
        theme="reads",
    ),
    _mutant(
        "request_ids_not_in_snapshot",
        "the table of answered requests is left out of the image",
        (MACHINE, '            "sessions": self.sessions,\n', ""),
    ),
    _mutant(
        "snapshot_drops_matching_suffix",
        "installing a snapshot throws away entries that follow it and match",
        (
            FOLLOWING,
            "        elif self.log.matches(meta.index, meta.term):\n            rare",
            "        elif meta.index < 0:\n            rare",
        ),
        theme="snapshots",
    ),
    _mutant(
        "snapshot_keeps_conflicting_suffix",
        "installing a snapshot keeps entries that conflict with it",
        (
            FOLLOWING,
            "        self.log = RaftLog(meta.index, meta.term)\n",
            "        self.log = RaftLog(meta.index, meta.term, self.log.slice(meta.index + 1, self.log.last))\n",
        ),
        theme="snapshots",
    ),
    _mutant(
        "snapshot_without_install",
        "a snapshot replaces the log but not the state",
        (
            FOLLOWING,
            "        self.snapshot = self._reset = self._install = meta\n",
            "        self.snapshot = self._reset = meta\n",
        ),
    ),
)

LIVENESS = (
    _mutant(
        "no_check_quorum",
        "a leader that hears nobody goes on leading",
        (LEADING, "            if not office.has_contact():\n", "            if office.term < 0:\n"),
    ),
    _mutant(
        "no_lease",
        "a server that cannot hear its leader unseats it",
        (
            ELECTIONS,
            "        return self.role == LEADER or (self.leader is not None and self._elapsed < "
            "self.settings.election_ticks)\n",
            "        return False\n",
        ),
    ),
    _mutant(
        "lost_append_not_repeated",
        "an append that got lost is never sent again",
        (
            LEADING,
            "        elif progress.match < self.log.last:\n"
            "            progress.poked = True\n"
            "            self._dirty = True\n",
            "",
        ),
    ),
    _mutant(
        "probe_does_not_go_back",
        "a refused append is repeated as it was",
        (
            OFFICE,
            "progress.probe_from(max(min(index, common + 1), progress.match + 1))",
            "progress.probe_from(progress.next)",
        ),
    ),
    _mutant(
        "old_snapshot_offered_for_ever",
        "a follower that holds what was offered is offered it again, though the log has moved on",
        (
            OFFICE,
            "progress.match >= min(offered.index, self._log.prev_index)",
            "progress.match >= self._log.prev_index",
        ),
        theme="snapshots",
    ),
    _mutant(
        "stale_leader_not_answered",
        "a leader of an old term is never told that it is old",
        (
            CORE,
            "            self._send(AppendReply(sender=self.server_id, to=message.sender, "
            "term=self.term, ok=False, index=index))\n",
            "            self._dirty = True\n",
        ),
        theme="divergence",
    ),
)

MUTANTS: tuple[Mutant, ...] = VOTES + LOG + MEMBERS + READS_AND_STATE + LIVENESS
BY_NAME = {mutant.name: mutant for mutant in MUTANTS}

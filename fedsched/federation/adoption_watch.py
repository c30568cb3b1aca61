"""Notices that the owner of a rollout is lost, in the leader of every other listed region, for jobs with `adopt_after`.

Theory. An owner talks to every region that has not ended its part, all the time: it asks for news when it has nothing
to say. So a region that has heard nothing for a while asks the owner itself (`Ask`), every now and then. When it has
neither been talked to nor answered for `adopt_after`, it asks all listed regions at once, the owner among them, and
begins an adoption (`Begin`) only if the owner does not answer, a majority of the listed regions does, itself included,
and none of these has heard the owner within `adopt_after` either.

Why ask the others first, when an adoption needs their agreement anyway: a region that begins an adoption has promised
to listen to nobody else. One that is cut off itself would come back with a higher ballot than the owner's, and take the
rollout from an owner that was well all along.

Regions take their chance one after the other, in the order of the list; should two begin at once, the ballots decide.
A region whose own part has ended waits for nothing, and does not watch.

When the owner was last heard is known to this leader and nowhere else: a new leader of the region gives the owner its
full patience again, and so does everybody when an adoption is under way, to whoever adopts. The clock counts
nanoseconds from anywhere, for this term only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from fedsched.federation.multiregion import ADOPTERS_MIN
from fedsched.federation.rollout_rules import FINAL, NS
from fedsched.model.rollout import RolloutShare, RolloutStanding

Ballot = tuple[int, str]
JobKey = tuple[str, str]
"""Namespace and id of a job: a region has one share for each."""


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """How a silent owner is looked after."""

    ask_s: float = 15.0
    """Between two questions to an owner that says nothing by itself; longer than it waits between two of its own."""
    call_s: float = 4.0
    """After which a question counts as unanswered."""
    stagger_s: float = 20.0
    """Between the chances of two regions: longer than an adoption takes to be known."""


@dataclass(frozen=True, slots=True)
class Told:
    """The region's log has this share."""

    share: RolloutShare
    outbid_by: Ballot = (0, "")
    """Our own adoption has met this higher ballot."""


@dataclass(frozen=True, slots=True)
class Forgotten:
    """The region has no share of this job any more."""

    job: JobKey


@dataclass(frozen=True, slots=True)
class Contact:
    """A command came from whoever drives with this ballot."""

    rollout_id: str
    ballot: Ballot


@dataclass(frozen=True, slots=True)
class Answered:
    """A region that was asked said this."""

    standing: RolloutStanding


@dataclass(frozen=True, slots=True)
class Unanswered:
    """A region that was asked said nothing."""

    rollout_id: str
    region: str


Input = Told | Forgotten | Contact | Answered | Unanswered


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask a region how it stands with the rollout; `Answered` or `Unanswered` tells what came of it."""

    rollout_id: str
    region: str


@dataclass(frozen=True, slots=True)
class Begin:
    """The owner is lost: begin an adoption."""

    rollout_id: str
    epoch: int


Effect = Ask | Begin


@dataclass(slots=True)
class _Round:
    """Questions under way, and the answers so far."""

    until_ns: int
    asked: frozenset[str]
    is_last: bool
    """Everybody is asked, and what they say decides."""
    answers: dict[str, RolloutStanding | None] = field(default_factory=dict)


@dataclass(slots=True)
class _Watched:
    """One rollout that another region drives."""

    job: JobKey
    rollout_id: str
    regions: tuple[str, ...]
    patience_ns: int
    ballot: Ballot
    since_ns: int
    """From when the owner's patience counts."""
    ask_at_ns: int
    heard_ns: int | None = None
    round: _Round | None = None

    @property
    def owner(self) -> str:
        return self.ballot[1]


class AdoptionWatch:
    """All rollouts that one region takes part in and does not drive, during one term."""

    def __init__(self, me: str, settings: WatchSettings | None = None) -> None:
        self._me = me
        self._settings = settings or WatchSettings()
        self._watched: dict[str, _Watched] = {}

    def handle(self, given: Input, now_ns: int) -> list[Effect]:
        """Take one input."""
        match given:
            case Told(share, outbid_by):
                self._take(share, outbid_by, now_ns)
            case Forgotten(job):
                self._drop(job, but="")
            case Contact(rollout_id, ballot):
                watched = self._watched.get(rollout_id)
                if watched is not None and ballot >= watched.ballot:
                    self._note_owner(watched, ballot, now_ns)
            case Answered(standing):
                self._note_answer(standing, now_ns)
            case Unanswered(rollout_id, region):
                watched = self._watched.get(rollout_id)
                if watched is not None and watched.round is not None:
                    watched.round.answers.setdefault(region, None)
        return self.wake(now_ns)

    def wake(self, now_ns: int) -> list[Effect]:
        """Ask whoever is due, and decide what follows from answers and from their absence."""
        effects: list[Effect] = []
        for _, watched in sorted(self._watched.items()):
            if watched.round is not None and self._is_complete(watched.round, now_ns):
                effects += self._judge(watched, watched.round, now_ns)
            if watched.round is None and watched.ask_at_ns <= now_ns:
                effects += self._ask(watched, now_ns)
        return effects

    def wake_at_ns(self) -> float:
        """When `wake` is due even if nothing is heard; infinity if never."""
        times = [one.ask_at_ns if one.round is None else one.round.until_ns for one in self._watched.values()]
        return min(times, default=math.inf)

    def heard_ago_s(self, rollout_id: str, now_ns: int) -> float | None:
        """How long ago the owner was heard in this term; None if it was not, or is not watched."""
        watched = self._watched.get(rollout_id)
        return None if watched is None or watched.heard_ns is None else (now_ns - watched.heard_ns) / NS

    def _take(self, share: RolloutShare, outbid_by: Ballot, now_ns: int) -> None:
        rollout = share.rollout
        job = (rollout.namespace, rollout.job_id)
        self._drop(job, but=rollout.id)
        known = self._watched.get(rollout.id)
        ballot = max(share.ballot, outbid_by, known.ballot if known is not None else (0, ""))
        names = tuple(one.name for one in rollout.regions)
        waits = share.status not in FINAL and not rollout.status.is_over
        is_wanted = rollout.strategy.adopt_after_s > 0 and len(names) >= ADOPTERS_MIN
        others = set(names) - {self._me}
        if not (waits and is_wanted and self._me in names and ballot[1] in others):
            self._watched.pop(rollout.id, None)
        elif known is None:
            watched = self._watched[rollout.id] = _Watched(
                job=job,
                rollout_id=rollout.id,
                regions=names,
                patience_ns=round(rollout.strategy.adopt_after_s * NS),
                ballot=ballot,
                since_ns=now_ns,
                ask_at_ns=now_ns,
            )
            self._be_patient(watched, now_ns)
        elif ballot > known.ballot:
            self._follow(known, ballot, now_ns)

    def _drop(self, job: JobKey, *, but: str) -> None:
        """Of each job, the newest rollout is watched."""
        for rollout_id in [one.rollout_id for one in self._watched.values() if one.job == job]:
            if rollout_id != but:
                del self._watched[rollout_id]

    def _note_answer(self, standing: RolloutStanding, now_ns: int) -> None:
        watched = self._watched.get(standing.rollout_id)
        if watched is None:
            return
        if watched.round is not None:
            watched.round.answers[standing.region] = standing if standing.is_known else None
        if standing.ballot > watched.ballot:
            self._follow(watched, standing.ballot, now_ns)
        elif standing.region == watched.owner and standing.drives:  # else it has lost its record, or given it up
            self._note_owner(watched, watched.ballot, now_ns)

    def _note_owner(self, watched: _Watched, ballot: Ballot, now_ns: int) -> None:
        self._follow(watched, ballot, now_ns)
        watched.heard_ns = now_ns

    def _follow(self, watched: _Watched, ballot: Ballot, now_ns: int) -> None:
        """Somebody else drives, or means to: the same patience with it."""
        if ballot[1] == self._me:
            del self._watched[watched.rollout_id]
            return
        watched.ballot, watched.heard_ns = ballot, None
        self._be_patient(watched, now_ns)

    def _be_patient(self, watched: _Watched, now_ns: int) -> None:
        watched.since_ns, watched.round = now_ns, None
        watched.ask_at_ns = self._next_ask_ns(watched, now_ns)

    def _next_ask_ns(self, watched: _Watched, now_ns: int) -> int:
        due_ns = now_ns + round(self._settings.ask_s * NS)
        chance_ns = self._chance_ns(watched)
        return min(due_ns, chance_ns) if chance_ns > now_ns else due_ns

    def _chance_ns(self, watched: _Watched) -> int:
        """When it is this region's turn to adopt, if the owner stays silent."""
        others = [name for name in watched.regions if name != watched.owner]
        return watched.since_ns + watched.patience_ns + round(others.index(self._me) * self._settings.stagger_s * NS)

    def _ask(self, watched: _Watched, now_ns: int) -> list[Effect]:
        is_last = self._chance_ns(watched) <= now_ns
        names = [name for name in watched.regions if name != self._me] if is_last else [watched.owner]
        until_ns = now_ns + round((self._settings.call_s + 1) * NS)
        watched.round = _Round(until_ns, frozenset(names), is_last)
        return [Ask(watched.rollout_id, name) for name in names]

    def _is_complete(self, asked: _Round, now_ns: int) -> bool:
        return asked.until_ns <= now_ns or asked.asked <= asked.answers.keys()

    def _judge(self, watched: _Watched, asked: _Round, now_ns: int) -> list[Effect]:
        """A round is over in which the owner said nothing."""
        watched.round = None
        watched.ask_at_ns = self._next_ask_ns(watched, now_ns)
        if not (asked.is_last and self._is_agreed(watched, asked)):
            return []
        self._be_patient(watched, now_ns)
        return [Begin(watched.rollout_id, watched.ballot[0] + 1)]

    def _is_agreed(self, watched: _Watched, asked: _Round) -> bool:
        """Whether enough regions are there, and none of them has heard the owner lately."""
        present = [one for one in asked.answers.values() if one is not None]
        agos_s = [one.heard_ago_s for one in present if one.ballot == watched.ballot and one.heard_ago_s is not None]
        is_majority = 1 + len(present) > len(watched.regions) // 2
        return is_majority and all(ago_s * NS >= watched.patience_ns for ago_s in agos_s)

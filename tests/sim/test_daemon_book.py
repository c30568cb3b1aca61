"""Every promise about daemons, broken on purpose once: the book must notice."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import trio

from fedsched.raft.messages import AppendReply, HardState, Heartbeat, Message, Vote, VoteReply
from fedsched.sim import trio_seed
from fedsched.sim.daemon_book import Book
from fedsched.sim.disk import LogImage
from fedsched.sim.linear import Operation
from fedsched.sim.machine import Command, Outcome
from fedsched.sim.trace import Trace
from fedsched.sim.verdict import Broken

DONE = Outcome(True, 5)


def payload(attempt: int = 1) -> bytes:
    return Command("c", 1, attempt, "put", "k", 0, "v").encode()


def told(story: Callable[[Book], None], *, closes: bool = True) -> str:
    """The invariant that a story breaks; empty if it breaks none."""

    async def tell() -> str:
        book = Book(Trace())
        try:
            story(book)
            if closes:
                book.close()
        except Broken as broken:
            return broken.invariant
        return ""

    return trio_seed.run(1, tell)


def committed(book: Book, attempt: int = 1, index: int = 5) -> None:
    book.proposed(attempt, "s1")
    book.apply("s1", index, 2, payload(attempt), DONE, b"d")
    book.ended(attempt, "committed", index, DONE)


def test_a_good_story_is_accepted() -> None:
    def story(book: Book) -> None:
        committed(book)
        book.apply("s2", 5, 2, payload(), DONE, b"d")
        book.loaded("s3", 5, b"d")
        for attempt, how in enumerate(("lost", "refused", "unknown"), start=2):
            book.proposed(attempt, "s1")
            book.ended(attempt, how)
        office = book.office_opened("s1", 2)
        book.role_moved("s1", "follower", 3, 0.0)
        book.office_closed(office)

    assert told(story) == ""


@pytest.mark.parametrize(
    ("invariant", "server", "term", "attempt", "outcome", "digest"),
    [
        ("same log", "s2", 3, 1, DONE, b"d"),
        ("same log", "s2", 2, 9, DONE, b"d"),
        ("same state", "s2", 2, 1, Outcome(False, 4), b"d"),
        ("same state", "s2", 2, 1, DONE, b"other"),
    ],
)
def test_servers_that_apply_different_things_are_noticed(
    invariant: str, server: str, term: int, attempt: int, outcome: Outcome, digest: bytes
) -> None:
    def story(book: Book) -> None:
        book.apply("s1", 5, 2, payload(), DONE, b"d")
        book.apply(server, 5, term, payload(attempt), outcome, digest)

    assert told(story) == invariant


def test_an_attempt_applied_twice_is_noticed() -> None:
    def story(book: Book) -> None:
        book.apply("s1", 5, 2, payload(), DONE, b"d")
        book.apply("s1", 6, 2, payload(), DONE, b"e")

    assert told(story) == "applied once"


def test_a_loaded_state_that_nobody_had_is_noticed() -> None:
    def story(book: Book) -> None:
        book.apply("s1", 5, 2, payload(), DONE, b"d")
        book.loaded("s2", 5, b"other")

    assert told(story) == "same state"


@pytest.mark.parametrize("how", ["lost", "refused"])
def test_a_proposal_said_to_have_failed_must_not_be_in_the_log(how: str) -> None:
    def story(book: Book) -> None:
        book.proposed(1, "s1")
        book.ended(1, how)
        book.apply("s2", 5, 2, payload(), DONE, b"d")

    assert told(story) == "true outcome"


@pytest.mark.parametrize(("attempt", "outcome"), [(2, DONE), (1, Outcome(False, 3))])
def test_a_proposal_said_to_be_committed_must_be_there_with_its_result(attempt: int, outcome: Outcome) -> None:
    def story(book: Book) -> None:
        book.proposed(1, "s1")
        book.apply("s1", 5, 2, payload(attempt), DONE, b"d")
        book.ended(1, "committed", 5, outcome)

    assert told(story) == "true outcome"


def test_a_proposal_ends_once_and_does_end() -> None:
    def twice(book: Book) -> None:
        committed(book)
        book.ended(1, "unknown")

    assert told(twice) == "ends once"
    assert told(lambda book: book.proposed(1, "s1")) == "ends once"


def test_a_term_has_one_office() -> None:
    def story(book: Book) -> None:
        book.office_opened("s1", 2)
        book.office_opened("s2", 2)

    assert told(story) == "one office"


@pytest.mark.parametrize("is_closed", [True, False])
def test_an_office_that_outlives_its_leadership_is_noticed(is_closed: bool) -> None:
    async def tell() -> str:
        book = Book(Trace())
        office = book.office_opened("s1", 2)
        book.role_moved("s1", "follower", 2, patience_s=1.0)
        await trio.sleep(1.5)
        with pytest.raises(Broken) as broken:
            book.office_closed(office) if is_closed else book.close()
        return broken.value.invariant

    assert trio_seed.run(1, tell) == "office ends"


def disk(term: int, vote: str | None = None, last: int = 0) -> LogImage:
    image = LogImage()
    image.hard_state = HardState(term, vote)
    image.prev_index = last
    return image


def a_vote_for(to: str, term: int, *, granted: bool = True) -> VoteReply:
    return VoteReply(sender="s1", to=to, term=term, granted=granted)


def an_ack(index: int, term: int) -> AppendReply:
    return AppendReply(sender="s1", to="s2", term=term, ok=True, index=index)


@pytest.mark.parametrize(
    ("message", "image", "invariant"),
    [
        (a_vote_for("s2", 3), disk(3, "s2"), ""),
        (a_vote_for("s2", 3), disk(3), "durable first"),
        (a_vote_for("s2", 3), disk(2, "s2"), "durable first"),
        (a_vote_for("s2", 3), disk(4), ""),
        (a_vote_for("s2", 3, granted=False), disk(2), ""),
        (Vote(sender="s1", to="s2", term=3, last_index=1, last_term=1), disk(3, "s1"), ""),
        (Vote(sender="s1", to="s2", term=3, last_index=1, last_term=1), disk(3), "durable first"),
        (an_ack(7, 3), disk(3, last=7), ""),
        (an_ack(7, 3), disk(3, last=6), "durable first"),
        (an_ack(7, 3), disk(2, last=9), "durable first"),
        (Heartbeat(sender="s1", to="s2", term=3, commit=0, round=0), disk(1), ""),
    ],
)
def test_what_others_rely_on_leaves_only_when_it_is_durable(message: Message, image: LogImage, invariant: str) -> None:
    assert told(lambda book: book.sending(message, image)) == invariant


def test_a_history_that_is_not_linearizable_is_noticed() -> None:
    def story(book: Book) -> None:
        book.history.append(Operation(client="a", op="put", key="k", argument="v", result=3, call=0, ret=1))
        book.history.append(Operation(client="b", op="get", key="k", result=[None, 0], call=2, ret=3))

    assert told(story) == "linearizable"


def test_a_trap_sees_every_event_in_the_moment_it_happens() -> None:
    seen: list[tuple[str, str]] = []

    def story(book: Book) -> None:
        book.trap = lambda server, kind: seen.append((server, kind))
        book.note("s1", "write", "7")

    assert told(story) == ""
    assert seen == [("s1", "write")]

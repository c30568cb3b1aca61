"""One command in several regions at once: `-region eu,us`, or `-region '*'` for all that are known.

A verb knows nothing of it. It runs once per region, a few at a time, each on a terminal that keeps what is written; in
the end all of it is laid side by side, or, for programs, becomes one object with an entry per region. All go through
the same agent, over a link each. A region that cannot be asked, or that takes too long, is an entry with its error and
never the end of the others; the exit code says whether all answered.

Only verbs that look (`Regions.EACH`) may run like this. Whether something could be found is an answer, too: a job need
not be in every region.

Threads instead of trio: a command lives for a tenth of a second, and starting trio would double that.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from io import StringIO
from queue import Empty as NothingYet
from queue import SimpleQueue
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

from fedsched.model.errors import DeadlineExceeded, FedschedError, NotFound
from fedsched.rpc.method import Empty
from fedsched.rpc.methods.server import REGION_LIST
from fedsched.sdk.target import ALL_REGIONS
from fedsched.verbs.flags import BadUsage, Given
from fedsched.verbs.side_by_side import Part, side_by_side
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.verb import FAILED, NOT_ALL_ANSWERED, OK, Regions, Verb

if TYPE_CHECKING:
    from fedsched.sdk.client import Client

AT_ONCE: Final = 8
"""Regions that are asked at the same time: enough to wait for the slowest only, few enough for one small agent."""
PATIENCE_S: Final = 10.0
"""For one question to one region: an election is waited out, and no more."""
LIMIT_S: Final = 60.0
"""For everything that is asked of one region: a long list comes in many pages."""

FOR_ONE: Final = ("monitor", "self", "page-token")
"""Flags that mean something in one region only: something to follow, a node, a place in a list."""

T = TypeVar("T")


class RegionTerminal(Terminal):
    """Where a verb runs for one of several regions: it keeps what is written."""

    def __init__(self, whole: Terminal, region: str, patience_s: float = PATIENCE_S) -> None:
        def connect(target: Any) -> Client:
            client = whole.connect(target)
            client.patience_s = patience_s
            return client

        super().__init__(StringIO(), whole.err, whole.stdin, whole.environ, connect=connect, now_ns=whole.now_ns)
        self.is_colourful = whole.is_colourful
        self.region = region
        self.pieces: list[str] = []
        self.values: list[Any] = []
        """What is printed as JSON, or formatted with a template."""
        self.warnings: list[str] = []
        self._target = whole.target._replace(region=region)

    def write(self, text: str) -> None:
        self.pieces.append(text)

    def warn(self, line: str) -> None:
        self.warnings.append(line)

    def show_json(self, value: Any) -> None:
        self.values.append(value)

    def formatted(self, given: Given, value: Callable[[], Any]) -> bool:
        if not _is_for_programs(given):
            return False
        self.values.append(value())
        return True


class Answer(NamedTuple):
    """What a verb came to in one region."""

    terminal: RegionTerminal
    code: int = OK
    error: FedschedError | None = None

    @property
    def has_failed(self) -> bool:
        """Whether the region was no help; that something is not there is an answer."""
        return self.error is not None and not isinstance(self.error, NotFound)


def run_in_several(verb: Verb, terminal: Terminal, given: Given) -> int:
    """Run a verb in the regions that are named: 0 if all answered, 2 if some did not, 1 if none did."""
    if verb.regions is Regions.ITSELF:
        return verb.run(terminal, given)
    _check(verb, terminal, given)
    names = named_regions(terminal)
    found = in_each(terminal, names, lambda one: _run(verb, one, given))
    for one in found.values():
        if isinstance(one, BadUsage):
            raise one  # wrong in whatever region: said once
    answers = {name: one if isinstance(one, Answer) else _unheard(terminal, name, one) for name, one in found.items()}
    errors = [answer.error for answer in answers.values() if answer.error is not None]
    is_same = len(errors) == len(names) and len({error.message for error in errors}) == 1
    if is_same and not _is_for_programs(given):
        raise errors[0]  # no such job anywhere, or no agent to ask
    _show(terminal, given, answers)
    return _code(terminal, answers)


def named_regions(terminal: Terminal) -> list[str]:
    """The regions that `-region` names, in that order; all that the agent knows, for `*`."""
    wanted = terminal.target.region
    names = [name.strip() for name in wanted.split(",")]
    if ALL_REGIONS in names:
        return [row.name for row in terminal.client.call(REGION_LIST, Empty(), region="").regions]
    if not all(names):
        raise BadUsage(f"-region {wanted!r} has an empty name", hint="such as -region eu,us, or -region '*' for all")
    return list(dict.fromkeys(names))


def in_each(
    terminal: Terminal,
    regions: Sequence[str],
    do: Callable[[RegionTerminal], T],
    *,
    patience_s: float = PATIENCE_S,
    limit_s: float = LIMIT_S,
) -> Mapping[str, T | FedschedError]:
    """Do something in every region, a few at a time; what each came to, in their order. Anything that is no
    `FedschedError` is raised here. A region that is not done after `limit_s` is left behind with its error.
    """
    waiting, began, heard = deque(regions), dict[str, float](), dict[str, T | FedschedError]()
    done: SimpleQueue[tuple[str, T | BaseException]] = SimpleQueue()

    def work(region: str) -> None:
        one = RegionTerminal(terminal, region, patience_s)
        try:
            done.put((region, do(one)))
        except BaseException as error:  # raised again by whoever waits, unless it is the region's answer
            done.put((region, error))
        finally:
            one.close()

    while len(heard) < len(regions):
        while waiting and len(began) - len(heard) < AT_ONCE:
            region = waiting.popleft()
            began[region] = time.monotonic()
            Thread(target=work, args=(region,), daemon=True).start()
        running = {region: at + limit_s for region, at in began.items() if region not in heard}
        try:
            region, result = done.get(timeout=max(0.0, min(running.values()) - time.monotonic()))
        except NothingYet:
            now = time.monotonic()
            for region in [one for one, until in running.items() if until <= now]:
                heard[region] = DeadlineExceeded(f"region {region!r} was not done after {limit_s:g} s")
            continue
        if isinstance(result, BaseException) and not isinstance(result, FedschedError):
            raise result
        heard.setdefault(region, result)
    return {region: heard[region] for region in regions}


def _check(verb: Verb, terminal: Terminal, given: Given) -> None:
    wanted = terminal.target.region
    if verb.regions is Regions.ONE:
        raise BadUsage(
            f"`{verb.name}` is for one region, not for {wanted!r}",
            hint="name one, such as -region eu; commands that only look take several",
        )
    for name in FOR_ONE:
        if given.get(name):
            raise BadUsage(f"-{name} is for one region, not for {wanted!r}", hint="name one, such as -region eu")
    if given.get("json") and given.get("t") is not None:
        raise BadUsage("Both json and template formatting are not allowed")


def _run(verb: Verb, terminal: RegionTerminal, given: Given) -> Answer:
    try:
        return Answer(terminal, verb.run(terminal, given))
    except BadUsage:
        raise
    except FedschedError as error:
        return Answer(terminal, FAILED, error)


def _unheard(terminal: Terminal, region: str, error: FedschedError) -> Answer:
    return Answer(RegionTerminal(terminal, region), FAILED, error)


def _show(terminal: Terminal, given: Given, answers: Mapping[str, Answer]) -> None:
    for name, answer in answers.items():
        for line in answer.terminal.warnings:
            terminal.warn(f"{name}: {line}")
    if _is_for_programs(given):
        terminal.formatted(given, lambda: {name: _entry(answer) for name, answer in answers.items()})
        return
    if any(answer.error is None for answer in answers.values()):
        if any(answer.terminal.values for answer in answers.values()):
            terminal.show_json({name: _entry(answer) for name, answer in answers.items()})
            return
        terminal.write(side_by_side([_part(name, answer) for name, answer in answers.items()], terminal.bold))
        return
    for name, answer in answers.items():
        if answer.error is not None:
            terminal.warn(f"Error: region {name}: {answer.error.message}")
            if answer.error.hint:
                terminal.warn(f"  {answer.error.hint}")


def _part(region: str, answer: Answer) -> Part:
    """What people are shown of a region."""
    if answer.error is None:
        return Part(region, answer.terminal.pieces)
    if answer.has_failed:
        return Part(region, answer.terminal.pieces, answer.error.message)
    return Part(region, [*answer.terminal.pieces, f"{answer.error.message}\n"])


def _entry(answer: Answer) -> dict[str, Any]:
    """What programs are given of a region: either what it answered or its error."""
    error = answer.error
    if error is not None:
        return {"Error": {"Code": error.code, "Message": error.message, "Hint": error.hint}}
    values = answer.terminal.values
    return {"Answer": values[0] if values else "".join(answer.terminal.pieces)}


def _code(terminal: Terminal, answers: Mapping[str, Answer]) -> int:
    failed = [name for name, answer in answers.items() if answer.has_failed]
    found = [answer.code for answer in answers.values() if answer.error is None]
    if failed:
        terminal.warn(f"{len(failed)} of {len(answers)} regions did not answer: {', '.join(failed)}")
        return FAILED if len(failed) == len(answers) else NOT_ALL_ANSWERED
    return max(found, default=FAILED)


def _is_for_programs(given: Given) -> bool:
    return bool(given.get("json")) or given.get("t") is not None

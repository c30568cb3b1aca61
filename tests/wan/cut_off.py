"""Two regions of three real servers; the network between them is lost for longer than any time-out, and comes back.

    python -m tests.wan.cut_off --cycles 3 --cut 75

All the while somebody asks one region for what is its own, and somebody else asks it for what is the other's. What must
hold: the region's own requests do not notice; those for the lost region fail at once and say who was tried; after
healing all servers know each other again, with nobody's help.

Latency is compared between windows of equal length with the network whole and lost, in turns, so that whatever else the
machine does meets both. How much such windows differ among themselves, without any cut between them, is said beside it.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from tests.chaos.leftovers import Run
from tests.chaos.watchdog import guarded
from tests.e2e.region import START_S, Server
from tests.wan.asker import OWN, Answer, read_answers
from tests.wan.news import FAILED, TOP, UP, News
from tests.wan.spaces import Spaces, missing

NEAR, FAR = "near", "far"
SERVERS = 3
HEALED_S = 30.0
FAIL_S = 5.0
P99_RATIO = 1.10
"""How much longer the region's own requests may take while the other one is lost."""
OWN_PER_S, FAR_PER_S, SIGN_PER_S = 40.0, 1.0, 2.0
NOTICE_S = 60.0
PATIENCE_S = 120.0
SETTLE_S = 2.0
POLL_S = 0.1
PORTS = (4646, 4647, 4648)
"""Every server has an address of its own, in a network of its own."""


@dataclass
class Cycle:
    """One cut, in seconds."""

    noticed_s: dict[str, float] = field(default_factory=dict)
    """By region: when all its servers had taken all of the other's for failed."""
    healed_s: float = 0.0
    answers_again_s: float = 0.0
    """From healing until somebody in the near region had an answer of the far one."""
    whole: list[float] = field(default_factory=list)
    lost: list[float] = field(default_factory=list)
    """What the near region's own requests took, with the network whole and lost, in the order they were made."""


@dataclass
class Outcome:
    cycles: list[Cycle] = field(default_factory=list)
    own: int = 0
    refused: list[Answer] = field(default_factory=list)
    """Requests for the lost region, made while it was lost."""
    problems: list[str] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        """The 99th percentile with the network lost, by that with the network whole."""
        return percentile(self._all("lost")) / percentile(self._all("whole"))

    @property
    def noise(self) -> float:
        """The same between two sets of windows that no cut tells apart: first and second halves, the larger by the
        smaller, for the network whole and lost."""
        found = 1.0
        for name in ("whole", "lost"):
            halves = (
                [one[: len(one) // 2] for one in self._windows(name)],
                [one[len(one) // 2 :] for one in self._windows(name)],
            )
            first, second = (percentile([took for window in half for took in window]) for half in halves)
            found = max(found, first / second, second / first)
        return found

    def _windows(self, name: str) -> list[list[float]]:
        return [getattr(cycle, name) for cycle in self.cycles]

    def _all(self, name: str) -> list[float]:
        return [took for window in self._windows(name) for took in window]

    def violations(self, *, with_latency: bool = True) -> list[str]:
        """Everything that does not hold."""
        found = list(self.problems)
        for number, cycle in enumerate(self.cycles, 1):
            if cycle.healed_s > HEALED_S:
                found.append(
                    f"cut {number}: all know all {cycle.healed_s:.1f} s after healing, {HEALED_S:g} s is the limit"
                )
        for answer in self.refused:
            if answer.took_s > FAIL_S:
                found.append(f"a request for the lost region failed after {answer.took_s:.1f} s: {answer.error}")
            if not any(f"{FAR}-{number}" in answer.error for number in range(1, SERVERS + 1)):
                found.append(f"a request for the lost region does not say who was tried: {answer.error}")
        if with_latency and self.ratio > P99_RATIO:
            found.append(
                f"p99 of own requests is {self.ratio:.3f} times what it was, {P99_RATIO:g} is the limit"
                f" (windows without a cut between them differ by {self.noise:.3f})"
            )
        return found

    def text(self) -> str:
        whole, lost = self._all("whole"), self._all("lost")
        noticed = [f"{cycle.noticed_s[NEAR]:.1f} / {cycle.noticed_s[FAR]:.1f}" for cycle in self.cycles]
        refused = [answer.took_s for answer in self.refused]
        return "\n".join(
            (
                f"own requests                    {self.own}, {len(whole)} and {len(lost)} of them in the windows",
                f"  network whole                 median {_ms(median(whole))}, p99 {_ms(percentile(whole))}",
                f"  network lost                  median {_ms(median(lost))}, p99 {_ms(percentile(lost))}",
                f"  p99, lost by whole            {self.ratio:.3f} (limit {P99_RATIO:g})",
                f"  p99, halves of equal windows  {self.noise:.3f} (what chance does)",
                f"requests for the lost region    {len(refused)}, failed after {_ms(median(refused))},"
                f" the slowest after {max(refused):.2f} s (limit {FAIL_S:g})",
                f"other region seen as failed     {', '.join(noticed)} s after the cut (near / far)",
                f"all know all again              {_s(one.healed_s for one in self.cycles)} s (limit {HEALED_S:g})",
                f"the other region answers again  {_s(one.answers_again_s for one in self.cycles)} s after healing",
            )
        )


class CutOff:
    """Both regions, the network, and those who ask."""

    def __init__(self, directory: Path, run: Run, spaces: Spaces, say: Callable[[str], None]) -> None:
        self._directory = directory
        self._spaces = spaces
        self._run = run
        self._say = say
        self.servers = {f"{one.name}.{one.region}": one for region in (NEAR, FAR) for one in self._region(region)}
        self.news = News({name: server.log for name, server in self.servers.items()})
        self.outcome = Outcome()

    def _region(self, region: str) -> list[Server]:
        hosts = {f"{region}-{number}": self._spaces.host(region, number) for number in range(1, SERVERS + 1)}
        servers = []
        for name, host in hosts.items():
            server = Server(name, self._directory / name, *PORTS, region=region, host=host, bind=host)
            server.join = [f"{other}:{PORTS[1]}" for other in hosts.values() if other != host]
            server.wan = [f"{self._spaces.host(one, 1)}:{PORTS[2]}" for one in (NEAR, FAR)]
            server.top = TOP
            server.extra = 'disk_soft_limit = "0B"'
            server.prefix = [*self._run.leash, *self._spaces.inside(region)]
            servers.append(server)
        return servers

    def start(self) -> None:
        """Until all run and know all."""
        for server in self.servers.values():
            server.start()
        until = time.monotonic() + START_S * 2
        while True:
            self.news.read()
            missing = [name for name in self.servers if self.news.started_at(name) is None]
            if not missing:
                break
            for name in missing:
                server = self.servers[name]
                is_in_time = server.is_alive and time.monotonic() < until
                assert is_in_time, f"{name} does not start\n{server.tail()}"
            time.sleep(POLL_S)
        self._wait_known(list(self.servers), UP, list(self.servers), PATIENCE_S)

    def asker(self, stack: ExitStack, region: str, what: str, per_s: float) -> Path:
        """Somebody in a region who asks without end; where the answers are."""
        out = self._directory / f"{region}-asks-{what}.jsonl"
        addresses = [server.address for server in self.servers.values() if server.region == region]
        module = [sys.executable, "-m", "tests.wan.asker", str(out), what, str(per_s), *addresses]
        with (self._directory / f"{out.stem}.log").open("wb") as log:
            process = subprocess.Popen(
                [*self._run.leash, *self._spaces.inside(region), *module], stdout=log, stderr=log
            )

        def end() -> None:
            process.kill()
            process.wait()

        stack.callback(end)
        return out

    def end(self) -> None:
        for server in self.servers.values():
            if server.process is not None and server.is_alive:
                server.process.kill()
        for server in self.servers.values():
            server.kill()

    # ---- the story ------------------------------------------------------------------------------------------

    def go(self, cycles: int, cut_s: float, window_s: float, own_per_s: float) -> None:
        with ExitStack() as stack:
            own = self.asker(stack, NEAR, OWN, own_per_s)
            far = self.asker(stack, NEAR, FAR, FAR_PER_S)
            sign = self.asker(stack, FAR, OWN, SIGN_PER_S)
            for path in (own, far, sign):
                self._wait_answer(path, 0.0)
            for number in range(1, cycles + 1):
                self._say(f"{number}/{cycles}: network whole for {window_s:g} s ...")
                self._cycle(own, far, cut_s, window_s)
            end = time.time()
        answers = read_answers(own)
        self.outcome.own = len(answers)
        for region, one in ((NEAR, own), (FAR, sign)):
            wrong = [answer for answer in read_answers(one) if answer.error and answer.at < end]
            self.outcome.problems += [f"region {region}'s own request failed: {answer.error}" for answer in wrong]

    def _cycle(self, own: Path, far: Path, cut_s: float, window_s: float) -> None:
        cycle = Cycle()
        time.sleep(SETTLE_S)
        whole_at = time.time()
        time.sleep(window_s)
        self._say(f"  lost for {cut_s:g} s ...")
        cut_at = time.time()
        self._spaces.cut()
        for region in (NEAR, FAR):
            at = self._wait_known(self._of(_other(region)), FAILED, self._of(region), NOTICE_S)
            cycle.noticed_s[region] = at - cut_at
        time.sleep(max(0.0, cut_at + cut_s - time.time()))
        heal_at = time.time()
        self._spaces.heal()
        cycle.healed_s = max(0.0, self._wait_known(list(self.servers), UP, list(self.servers), PATIENCE_S) - heal_at)
        again = self._wait_answer(far, heal_at)
        cycle.answers_again_s = again.at + again.took_s - heal_at
        self._say(f"  all know all again {cycle.healed_s:.1f} s after healing")
        answers = read_answers(own)
        cycle.whole = [answer.took_s for answer in answers if whole_at <= answer.at < whole_at + window_s]
        cycle.lost = [answer.took_s for answer in answers if heal_at - window_s <= answer.at < heal_at]
        self.outcome.cycles.append(cycle)
        asked = read_answers(far)
        lost = [answer for answer in asked if cut_at < answer.at and answer.at + answer.took_s < heal_at]
        self.outcome.refused += lost
        self.outcome.problems += [f"answered although it was lost, at {one.at}" for one in lost if not one.error]
        early = [one for one in asked if whole_at <= one.at and one.at + one.took_s < cut_at and one.error]
        self.outcome.problems += [f"failed although it was not lost: {one.error}" for one in early]

    def _of(self, region: str) -> list[str]:
        return [name for name, server in self.servers.items() if server.region == region]

    def _wait_known(
        self, abouts: Sequence[str], kinds: frozenset[str], observers: Sequence[str], within_s: float
    ) -> float:
        until = time.monotonic() + within_s
        while True:
            self.news.read()
            at = self.news.all_know_at(abouts, kinds, observers)
            if at is not None:
                return at
            assert time.monotonic() < until, f"after {within_s:g} s: {self.news.missing(abouts, kinds, observers)}"
            time.sleep(POLL_S)

    def _wait_answer(self, path: Path, since: float) -> Answer:
        """The first good answer to a question that was asked after this moment."""
        until = time.monotonic() + PATIENCE_S
        while True:
            for answer in read_answers(path):
                if answer.at >= since and not answer.error:
                    return answer
            assert time.monotonic() < until, f"{path.stem}: no answer\n{path.with_suffix('.log').read_text()}"
            time.sleep(POLL_S)


def run(
    directory: Path,
    *,
    cycles: int,
    cut_s: float,
    window_s: float,
    own_per_s: float = OWN_PER_S,
    say: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """The whole story. However this process ends, servers and namespaces end with it."""
    with guarded(directory) as run:
        spaces = Spaces(run, (NEAR, FAR))
        try:
            story = CutOff(directory, run, spaces, say)
            try:
                say("two regions of three servers find each other ...")
                story.start()
                story.go(cycles, cut_s, window_s, own_per_s)
            finally:
                story.end()
        finally:
            spaces.close()
    return story.outcome


def percentile(took: Sequence[float], part: float = 0.99) -> float:
    """The smallest that so large a part does not exceed."""
    return sorted(took)[max(0, math.ceil(part * len(took)) - 1)]


def _other(region: str) -> str:
    return FAR if region == NEAR else NEAR


def _ms(took: float) -> str:
    return f"{took * 1000:.1f} ms"


def _s(took: Iterable[float]) -> str:
    return ", ".join(f"{one:.1f}" for one in took)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.wan.cut_off", description=__doc__)
    parser.add_argument("--cycles", type=int, default=3, help="how often the network is lost (default 3)")
    parser.add_argument("--cut", type=float, default=75.0, help="for how many seconds (default 75)")
    parser.add_argument("--window", type=float, default=30.0, help="length of what is compared, in s (default 30)")
    given = parser.parse_args(arguments)
    problem = missing()
    if problem:
        print(f"cannot be done here: {problem}", file=sys.stderr)
        return 2
    directory = Path(tempfile.mkdtemp(prefix="fedsched-cut-off-"))
    began = time.monotonic()
    try:
        outcome = run(
            directory,
            cycles=given.cycles,
            cut_s=given.cut,
            window_s=given.window,
            say=lambda text: print(text, flush=True),
        )
    except AssertionError as error:
        print(f"FAILED: {error}\nlogs are in {directory}")
        return 1
    violations = outcome.violations()
    print(outcome.text())
    verdict = "FAILED" if violations else "all hold"
    print(f"in {time.monotonic() - began:.0f} s, load {os.getloadavg()[0]:.1f}: {verdict}")
    for violation in violations[:20]:
        print(f"  {violation}")
    if violations:
        print(f"logs are in {directory}")
    else:
        shutil.rmtree(directory)
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

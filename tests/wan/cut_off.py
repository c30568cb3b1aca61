"""Two regions of three real servers; one is lost to the other for longer than any time-out, and comes back.

    python -m tests.wan.cut_off --cycles 4 --lost 75

It is cut off, which the two regions see alike, or all of its processes stall, in turns.

All the while somebody asks one region for what is its own, and somebody else asks it for what is the other's. What must
hold: the region's own requests do not notice; those for the lost region fail at once and say who was tried; after
healing all servers know each other again, with nobody's help.

Latency is compared between windows of equal length, before and during each loss, so that whatever else the machine does
meets both. How much such windows differ among themselves, with no loss between them, is said beside it.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.chaos.leftovers import Run
from tests.chaos.watchdog import guarded
from tests.e2e.region import START_S, Server
from tests.wan.asker import OWN, Answer, read_answers
from tests.wan.cut_report import FAR, NEAR, P99_RATIO, SERVERS, Cycle, Outcome
from tests.wan.news import FAILED, TOP, UP, News
from tests.wan.spaces import Spaces, missing

CUT, STALL = HOWS = ("cut off", "stalled")
"""The network is lost; or all of the far region's processes are stopped in their tracks, with their connections up."""
OWN_PER_S, FAR_PER_S, SIGN_PER_S = 40.0, 1.0, 2.0
NOTICE_S = 60.0
PATIENCE_S = 120.0
TOO_NOISY = 3
"""Exit code of a run in which all holds that could be judged."""
SETTLE_S = 2.0
POLL_S = 0.1
PORTS = (4646, 4647, 4648)
"""Every server has an address of its own, in a network of its own."""


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
        self._stalls: list[tuple[float, float]] = []
        """When the far region itself could not answer anybody."""

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

    def go(self, hows: Sequence[str], lost_s: float, window_s: float, own_per_s: float) -> None:
        with ExitStack() as stack:
            own = self.asker(stack, NEAR, OWN, own_per_s)
            far = self.asker(stack, NEAR, FAR, FAR_PER_S)
            sign = self.asker(stack, FAR, OWN, SIGN_PER_S)
            for path in (own, far, sign):
                self._wait_answer(path, 0.0)
            for number, how in enumerate(hows, 1):
                self._say(f"{number}/{len(hows)}: all is well for {window_s:g} s ...")
                self._cycle(how, own, far, lost_s, window_s)
            end = time.time()
        answers = read_answers(own)
        self.outcome.own = len(answers)
        for region, one in ((NEAR, own), (FAR, sign)):
            wrong = [
                answer
                for answer in read_answers(one)
                if answer.error and answer.at < end and not (region == FAR and self._met_a_stall(answer))
            ]
            self.outcome.problems += [f"region {region}'s own request failed: {answer.error}" for answer in wrong]

    def _met_a_stall(self, answer: Answer) -> bool:
        return any(answer.at <= until and answer.at + answer.took_s >= since for since, until in self._stalls)

    def _lose(self, how: str) -> None:
        if how == CUT:
            self._spaces.cut()
        for name in self._of(FAR) if how == STALL else ():
            self.servers[name].pause()

    def _bring_back(self, how: str) -> None:
        if how == CUT:
            self._spaces.heal()
        for name in self._of(FAR) if how == STALL else ():
            self.servers[name].resume()

    def _cycle(self, how: str, own: Path, far: Path, lost_s: float, window_s: float) -> None:
        cycle = Cycle(how)
        time.sleep(SETTLE_S)
        whole_at = time.time()
        time.sleep(window_s)
        self._say(f"  {how} for {lost_s:g} s ...")
        cut_at = time.time()
        self._lose(how)
        for region in (NEAR, FAR) if how == CUT else (NEAR,):
            at = self._wait_known(self._of(_other(region)), FAILED, self._of(region), NOTICE_S)
            cycle.noticed_s[region] = at - cut_at
        time.sleep(max(0.0, cut_at + lost_s - time.time()))
        heal_at = time.time()
        self._bring_back(how)
        cycle.healed_s = max(0.0, self._wait_known(list(self.servers), UP, list(self.servers), PATIENCE_S) - heal_at)
        again = self._wait_answer(far, heal_at)
        cycle.answers_again_s = again.at + again.took_s - heal_at
        if how == STALL:
            self._stalls.append((cut_at, again.at + again.took_s))
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
    hows: Sequence[str],
    lost_s: float,
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
                story.go(hows, lost_s, window_s, own_per_s)
            finally:
                story.end()
        finally:
            spaces.close()
    return story.outcome


def _other(region: str) -> str:
    return FAR if region == NEAR else NEAR


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.wan.cut_off", description=__doc__)
    parser.add_argument("--cycles", type=int, default=4, help="how often the region is lost (default 4)")
    parser.add_argument("--how", choices=[*HOWS, "both"], default="both", help="both: in turns (default)")
    parser.add_argument("--lost", type=float, default=75.0, help="for how many seconds (default 75)")
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
            hows=[HOWS[number % 2] if given.how == "both" else given.how for number in range(given.cycles)],
            lost_s=given.lost,
            window_s=given.window,
            say=lambda text: print(text, flush=True),
        )
    except AssertionError as error:
        print(f"FAILED: {error}\nlogs are in {directory}")
        return 1
    violations = outcome.violations()
    print(outcome.text())
    verdict = "FAILED" if violations else "all hold"
    if outcome.is_too_noisy:
        verdict += f", but the machine is too noisy to tell a ratio of {P99_RATIO:g} of latencies"
    print(f"in {time.monotonic() - began:.0f} s, load {os.getloadavg()[0]:.1f}: {verdict}")
    for violation in violations[:20]:
        print(f"  {violation}")
    if violations:
        print(f"logs are in {directory}")
    else:
        shutil.rmtree(directory)
    return 1 if violations else TOO_NOISY if outcome.is_too_noisy else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

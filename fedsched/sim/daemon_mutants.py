"""Planted bugs for the simulation of whole daemons: mistakes of runners, not of cores.

    python -m fedsched.sim.daemon_mutants                 every bug, each in a process of its own
    python -m fedsched.sim.daemon_mutants --one NAME      one of them, here

Exit code 0 means that every bug was caught within its budget of seeds.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time

from fedsched.sim.mutants import Mutant, Patch, plant

RUNNER = "fedsched.raft.runner"
APPLIER = "fedsched.raft.applier"
SNAPSHOTTER = "fedsched.raft.snapshotter"
TRANSPORT = "fedsched.raft.transport"

SEEDS_MAX = 40


def _mutant(name: str, what: str, *patches: tuple[str, str, str]) -> Mutant:
    return Mutant(name, what, tuple(Patch(*patch) for patch in patches))


MUTANTS = (
    _mutant(
        "promise_before_durable",
        "acknowledgements and votes leave before the write they rest on is durable",
        (
            RUNNER,
            "            _PendingWrite(effects.number, effects.after_store, effects.last_index,",
            "            _PendingWrite(effects.number, self._post(effects.after_store) or [], effects.last_index,",
        ),
    ),
    _mutant(
        "promise_overtakes_write",
        "an acknowledgement that needs no write of its own does not wait for the writes before it",
        (RUNNER, "if not effects.needs_store and not self._pending:", "if not effects.needs_store:"),
    ),
    _mutant(
        "completions_out_of_order",
        "the newest write is taken for the one that was completed",
        (RUNNER, "            write = pending.popleft()\n", "            write = pending.pop()\n"),
    ),
    _mutant(
        "one_completion_for_all",
        "any completed write completes all that wait",
        (RUNNER, "while pending and pending[0].number <= number:", "while pending:"),
    ),
    _mutant(
        "writes_after_the_end",
        "a write that completes after the end has effects, for which there is no store any more",
        (RUNNER, "while is_due and not self._is_over and not", "while is_due and not"),
    ),
    _mutant(
        "office_outlives_leadership",
        "losing leadership does not close the office",
        (RUNNER, "                self._office.cancel()\n", "                pass\n"),
    ),
    _mutant(
        "office_opens_early",
        "any applied entry opens the office, whatever its term",
        (RUNNER, "and terms_and_results[-1][0] == role.term:", "and terms_and_results:"),
    ),
    _mutant(
        "office_opens_late",
        "an office whose leadership is over already is opened nevertheless",
        (RUNNER, "if office is None or not self.is_leader or self._role.term != office.term:", "if office is None:"),
    ),
    _mutant(
        "proposals_outlive_leadership",
        "losing leadership leaves proposals open",
        (
            RUNNER,
            "            unknown = self._proposals.leadership_lost()\n",
            "            unknown = len(self._proposals)\n",
        ),
    ),
    _mutant(
        "cancelled_proposal_remembered",
        "a caller that gives up leaves its proposal behind",
        (RUNNER, "            self._proposals.forget(answer.first, promise)\n", "            pass\n"),
    ),
    _mutant(
        "unknown_called_lost",
        "what was open when leadership went is said never to have happened",
        ("fedsched.raft.waiters", "                OutcomeUnknown(\n", "                ProposalLost(\n"),
    ),
    _mutant(
        "read_barrier_reused",
        "a read shares a barrier that has left already",
        (
            RUNNER,
            "        self._shared_read = None\n        is_due",
            "        is_due",
        ),
    ),
    _mutant(
        "read_does_not_wait",
        "a read is answered before the state has reached its index",
        (
            RUNNER,
            "        index = await promise.wait()\n        await self.wait_applied(index)\n",
            "        index = await promise.wait()\n",
        ),
    ),
    _mutant(
        "applies_while_held",
        "entries are applied while a snapshot is on its way into the state",
        (
            APPLIER,
            "while self.applied < self._commit and not self._held:",
            "while self.applied < self._commit:",
        ),
        (APPLIER, "if self.applied >= self._commit or self._held:", "if self.applied >= self._commit:"),
        (
            APPLIER,
            "        async with self._turn:\n            await load()\n            self.applied = index\n",
            "        if index:\n            self.applied = index\n            await load()\n",
        ),
    ),
    _mutant(
        "snapshot_while_held",
        "a snapshot is cut while another one is on its way into the state",
        (SNAPSHOTTER, "            await self._applier.wait_released()\n", ""),
    ),
    _mutant(
        "failed_disk_shrugged_off",
        "a failed write is forgotten instead of stopping the server",
        (RUNNER, "        self._pending.clear()\n        self.fail(", "        self._pending.clear()\n        _ = ("),
    ),
    _mutant(
        "dead_links_kept",
        "a connection whose other end lost its power is listened to for ever",
        (TRANSPORT, "            earlier.cancel()", "            pass"),
    ),
    _mutant(
        "half_a_packet_dropped",
        "what arrives in two pieces is not put together",
        (TRANSPORT, "            self._buffer += chunk\n", "            self._buffer[:] = chunk\n"),
    ),
)


def catch(mutant: Mutant, first: int, seeds: int) -> str:
    """Plant the bug in this process and run seeds until one breaks; says how, or nothing if none does."""
    plant(mutant)
    from fedsched.sim.daemons import run_seed  # only now: importing is what plants the bug

    for seed in range(first, first + seeds):
        report = run_seed(seed)
        if report.broken is not None:
            return f"seed {seed}: {str(report.broken).splitlines()[0]}"
    return ""


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m fedsched.sim.daemon_mutants", description="test the simulation")
    parser.add_argument("--one", choices=[mutant.name for mutant in MUTANTS], help="only this bug, in this process")
    parser.add_argument("--seeds", type=int, default=SEEDS_MAX, help=f"at most this many each (default {SEEDS_MAX})")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default 0)")
    given = parser.parse_args(arguments)
    if given.one is not None:
        (mutant,) = (mutant for mutant in MUTANTS if mutant.name == given.one)
        how = catch(mutant, given.first, given.seeds)
        print(f"{mutant.name}: {'caught by ' + how if how else 'NOT CAUGHT'}")
        return 0 if how else 1
    return _all(given.first, given.seeds)


def _all(first: int, seeds: int) -> int:
    survivors = []
    for mutant in MUTANTS:
        started = time.perf_counter()
        command = [sys.executable, "-m", __spec__.name, "--one", mutant.name]
        done = subprocess.run([*command, "--first", str(first), "--seeds", str(seeds)], capture_output=True, text=True)
        print(f"{time.perf_counter() - started:6.1f} s  {(done.stdout or done.stderr).strip()}", flush=True)
        if done.returncode:
            survivors.append(mutant.name)
    print(f"{len(MUTANTS) - len(survivors)} of {len(MUTANTS)} planted bugs caught; not caught: {survivors or 'none'}")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())

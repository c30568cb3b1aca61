"""Following a rollout through its regions to its end. One line per change of a region, or a picture that is redrawn.

The region that drives it is asked, for only its record is the present one. While it does not answer, the copies of the
others are shown, which are as old as the last command that they had; it is asked again each time. Should another
region take over, that one is followed. Nothing here polls: each question waits at the server until there is news.

Ctrl-C stops the following and nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from fedsched.model.errors import DeadlineExceeded, FedschedError
from fedsched.model.rollout import Rollout, RolloutStatus
from fedsched.rpc.methods.rollout import ROLLOUT_GET, RolloutGetRequest
from fedsched.verbs.job_monitor import REDRAW_S, WAIT_S, say_with_time
from fedsched.verbs.live import LiveBlock
from fedsched.verbs.rollout_view import region_table, region_words
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.verb import FAILED, OK
from fedsched.verbs.view import moment, short

PATIENCE_S: Final = 5.0
"""For one question to one region; then the next one is asked."""
ROUNDS_MAX: Final = 6
"""So often all regions are asked in vain before the following ends."""


def follow_rollout(
    terminal: Terminal, rollout_id: str, regions: Sequence[str], *, namespace: str, verbose: bool
) -> int:
    """Print how a rollout ends: 0 if well, 1 otherwise, also if it rests until a person decides."""
    shown = short(rollout_id, verbose=verbose)
    say_with_time(terminal, f'Monitoring rollout "{shown}" in regions {", ".join(regions)}', is_head=True)
    watch = _Watch(terminal, rollout_id, regions, namespace)
    try:
        rollout = _drawn(terminal, watch, verbose) if LiveBlock.suits(terminal) else _told(terminal, watch)
    except KeyboardInterrupt:
        terminal.say(f"\nDetached: the rollout goes on. `fedsched operator rollout status {shown}` shows it.")
        raise
    is_well = rollout.status is RolloutStatus.SUCCESSFUL
    terminal.say(f'  [{"ok" if is_well else "!!"}] Rollout "{shown}" {rollout.status.value}\n')
    terminal.say(f"    {moment(terminal.now_ns())}")
    if rollout.status_description:
        terminal.say(f"    {rollout.status_description}\n")
    terminal.write("".join(f"    {line}\n" for line in region_table(rollout, verbose=verbose).splitlines()))
    if rollout.status is RolloutStatus.BLOCKED:
        terminal.say("\n    It rests until somebody decides: `fedsched deployment unblock` or `deployment fail`, in a")
        terminal.say("    region or with -global.")
    return OK if is_well else FAILED


class _Watch:
    """Asks for the rollout, whoever knows of it."""

    def __init__(self, terminal: Terminal, rollout_id: str, regions: Sequence[str], namespace: str) -> None:
        self._terminal = terminal
        self._rollout_id = rollout_id
        self._regions = list(regions)
        self._namespace = namespace
        self._indexes: dict[str, int] = {}
        """Of each region's last answer."""
        self._former: set[str] = set()
        """Regions that say they drive it no more; copies may name them for a while."""
        self._error: FedschedError | None = None
        self.note = ""
        """What to know about the last answer; empty if it is that of the region that drives the rollout."""

    def look(self, wait_s: float) -> Rollout:
        """The rollout as soon as it is another than it was; after so long as it is."""
        for _ in range(ROUNDS_MAX):
            for region in list(self._regions):
                rollout = self._ask(region, wait_s)
                if rollout is None:
                    continue
                if rollout.owner not in (region, *self._former):
                    self._ask_first(rollout.owner, instead_of=region)
                else:
                    self.note = ""
                return rollout
            self._terminal.client.wait(1.0)
        error = self._error
        raise DeadlineExceeded(
            f"none of the regions {', '.join(self._regions)} answers for the rollout: {error.message if error else ''}",
            hint="it goes on without being watched; `fedsched operator rollout status` shows it when they are back",
        )

    def _ask_first(self, owner: str, *, instead_of: str) -> None:
        """The next question goes to whoever drives it; if this one did and it was not answered, there is a note."""
        if self._regions[0] == owner:
            why = f" ({self._error.message})" if self._error is not None else ""
            self.note = (
                f'Region "{owner}", which drives it, does not answer{why}; this is what "{instead_of}" last heard'
            )
        self._regions = [owner, *(one for one in self._regions if one != owner)]

    def _ask(self, region: str, wait_s: float) -> Rollout | None:
        """What a region knows; None if it does not answer, or knows that it drives it no more."""
        index = self._indexes.get(region, 0)
        try:
            view = self._terminal.client.call(
                ROLLOUT_GET,
                RolloutGetRequest(rollout_id=self._rollout_id),
                region=region,
                namespace=self._namespace,
                min_index=index,
                max_wait_s=wait_s if index else 0.0,
                patience_s=PATIENCE_S,
            )
        except FedschedError as error:
            self._error = error
            return None
        self._indexes[region] = self._terminal.client.last.index
        if view.rollout.status is RolloutStatus.ADOPTED and len(self._regions) > 1:
            self._former.add(region)
            return None
        self._former.discard(region)
        return view.rollout


def _told(terminal: Terminal, watch: _Watch) -> Rollout:
    """Follow it with one line per change."""
    known: dict[str, str] = {}
    status = note = ""
    while True:
        rollout = watch.look(WAIT_S)
        if watch.note and watch.note != note:
            say_with_time(terminal, watch.note)
        note = watch.note
        for one in rollout.regions:
            words = region_words(one)
            if known.get(one.name) != words:
                say_with_time(terminal, f'Region "{one.name}" is {words}')
                known[one.name] = words
        if rollout.status.value != status:
            say_with_time(terminal, f"Rollout is {rollout.status.value}")
            status = rollout.status.value
        if _is_at_rest(rollout):
            return rollout


def _drawn(terminal: Terminal, watch: _Watch, verbose: bool) -> Rollout:
    """Follow it with a picture of all regions."""
    block = LiveBlock(terminal)
    while True:
        rollout = watch.look(REDRAW_S)
        if _is_at_rest(rollout):
            block.clear()
            return rollout
        lines = region_table(rollout, verbose=verbose).splitlines() + ([watch.note] if watch.note else [])
        head = f"  {block.spinner()} Rollout is {rollout.status.value}; driven by region {rollout.owner}\n\n"
        block.draw(head + "".join(f"    {line}\n" for line in lines))


def _is_at_rest(rollout: Rollout) -> bool:
    return rollout.status.is_over or rollout.status is RolloutStatus.BLOCKED

"""Text scripts: commands above `----`, what was observed below it.

One file is one scenario on one region; a block's output is checked before the next block's commands run. Run the tests
with FEDSCHED_REWRITE=1 to write what is observed into the files; the diff is the review. Words of the language are the
methods of `Script`; `fixtures/raft/README.txt` lists them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from fedsched.raft.entry import Entry, EntryKind
from fedsched.raft.membership import AddLearner, ConfigChange, Demote, Promote, Readdress, Remove, Replace
from fedsched.raft.messages import (
    Accepted,
    Append,
    AppendReply,
    Diverged,
    HardState,
    Heartbeat,
    HeartbeatReply,
    Message,
    PreVote,
    PreVoteReply,
    ReadIndex,
    ReadIndexReply,
    Refused,
    SnapshotDone,
    SnapshotOffer,
    TimeoutNow,
    Vote,
    VoteReply,
)
from fedsched.raft.settings import CoreSettings
from tests.raft.region import Disk, Region, a_log, a_server, told_config


def replay(text: str) -> str:
    """The script again, with what is observed now."""
    script = Script()
    lines: list[str] = []
    is_output = False
    for line in text.splitlines():
        if line == "----":
            lines += [line, *script.observed()]
            is_output = True
        elif not is_output:
            lines.append(line)
            if line and not line.startswith("#"):
                script.run(line)
        elif not line:
            lines.append(line)
            is_output = False
    return "\n".join(lines) + "\n"


def script_files() -> list[Path]:
    return sorted((Path(__file__).parents[2] / "fixtures" / "raft").glob("*.txt"))


class Script:
    """The commands. Each adds to what was observed; nothing is delivered or synced unless a command says so."""

    def __init__(self) -> None:
        self.region = Region("")
        self._answers: list[str] = []

    def observed(self) -> list[str]:
        told, self._answers = self._answers, []
        return told

    def run(self, line: str) -> None:
        word, *args = line.split()
        command: Callable[..., None] = getattr(self, "do_" + word.replace("-", "_"))
        command(*args)
        self._answers += self.region.story
        self.region.story.clear()

    def say(self, what: str) -> None:
        self._answers += [*self.region.story, what]
        self.region.story.clear()

    # ------------------------------------------------------------------ making

    def do_servers(self, voters: str, *options: str) -> None:
        """servers 123 leader=1 learners=4 fresh=5 log=1:2,2,3 term=1:3 vote=1:2 message_bytes=30 (any setting)"""
        learners = fresh = leader = ""
        logs: dict[str, tuple[Entry, ...]] = {}
        terms: dict[str, int] = {}
        votes: dict[str, str] = {}
        limits: dict[str, int] = {"heartbeat_ticks": 2, "election_ticks": 10}
        for option in options:
            name, _, value = option.partition("=")
            server_id, _, detail = value.partition(":")
            if name == "learners":
                learners = value
            elif name == "fresh":
                fresh = value
            elif name == "leader":
                leader = value
            elif name == "log":
                logs[server_id] = a_log([int(term) for term in detail.split(",")], after=1)
            elif name == "term":
                terms[server_id] = int(detail)
            elif name == "vote":
                votes[server_id] = detail
            else:
                limits[name] = int(value)
        hard = {each: HardState(terms.get(each, 0), votes.get(each)) for each in {*terms, *votes}}
        self.region = Region(
            voters, learners=learners, fresh=fresh, settings=CoreSettings(**limits), logs=logs, hard=hard
        )
        if leader:
            self.region.elect(leader)
            self.region.settle()
        self.region.story.clear()

    def do_fresh(self, server_id: str) -> None:
        self.region._start(server_id, Disk())
        self.region.story.clear()

    # ----------------------------------------------------------------- running

    def do_elect(self, server_id: str) -> None:
        self.region.elect(server_id)

    def do_expire(self, *but: str) -> None:
        self.region.expire(*but)

    def do_tick(self, server_id: str, times: str = "1") -> None:
        self.region.tick(server_id, int(times))

    def do_settle(self, ticks: str = "4") -> None:
        self.region.settle(int(ticks))

    def do_deliver(self, *which: str) -> None:
        self.region.deliver(_wanted(which))

    def do_drop(self, *which: str) -> None:
        self.say(f"dropped {self.region.drop(_wanted(which))}")

    def do_again(self, *which: str) -> None:
        """Deliver a copy: the network duplicates."""
        for message in [each for each in self.region.wire if _wanted(which)(each)]:
            self.region.step(message)

    def do_inject(self, link: str, kind: str, *fields: str) -> None:
        """A message out of nowhere: late, repeated, or from a server that lies."""
        sender, to = link.split("->")
        self.region.step(_made(kind, sender, to, dict(field.split("=") for field in fields)))

    def do_propose(self, server_id: str, *payloads: str) -> None:
        self.say(_told_answer(self.region.propose(server_id, *payloads)))

    def do_change(self, server_id: str, what: str, *args: str) -> None:
        based = [int(each[6:]) for each in args if each.startswith("based=")]
        change = _change(what, [each for each in args if not each.startswith("based=")])
        answer = self.region.core(server_id).propose_config(change, based[0] if based else None)
        self.say(_told_answer(answer))
        self.region.pump(server_id)

    def do_transfer(self, server_id: str, target: str | None = None) -> None:
        refused = self.region.core(server_id).transfer_leadership(target)
        if refused is not None:
            self.say(_told_answer(refused))
        self.region.pump(server_id)

    def do_read(self, server_id: str, ctx: str) -> None:
        self.region.core(server_id).read_index(int(ctx))
        self.region.pump(server_id)

    def do_digest(self, server_id: str, index: str, value: str) -> None:
        self.region.core(server_id).note_digest(int(index), value.encode())
        self.region.pump(server_id)

    # ------------------------------------------------------------------ faults

    def do_cut(self, *what: str) -> None:
        for each in what:
            if "->" in each:
                self.region.cut_link(*each.split("->"))
            else:
                self.region.cut(each)

    def do_heal(self) -> None:
        self.region.heal()

    def do_stall(self, server_id: str) -> None:
        self.region.servers[server_id].disk.is_stalled = True

    def do_sync(self, server_id: str, count: str = "") -> None:
        self.region.sync(server_id, int(count) if count else None)

    def do_unstall(self, server_id: str) -> None:
        self.region.servers[server_id].disk.is_stalled = False
        self.region.sync(server_id)

    def do_crash(self, server_id: str) -> None:
        self.region.crash(server_id)

    def do_restart(self, server_id: str) -> None:
        self.region.restart(server_id)

    def do_wipe(self, server_id: str) -> None:
        self.region.wipe(server_id)

    def do_unreachable(self, server_id: str, peer: str) -> None:
        self.region.core(server_id).peer_unreachable(peer)
        self.region.pump(server_id)

    # --------------------------------------------------------------- snapshots

    def do_snapshot(self, server_id: str, compact_to: str = "") -> None:
        self.region.snapshot(server_id, int(compact_to) if compact_to else None)

    def do_offer(self, link: str) -> None:
        """offer 1->3: 1 offers its newest snapshot out of turn."""
        sender, to = link.split("->")
        core = self.region.core(sender)
        assert core.snapshot is not None
        self.region.step(SnapshotOffer(sender=sender, to=to, term=core.term, meta=core.snapshot))

    def do_fetched(self, server_id: str) -> None:
        self.region.fetched(server_id)

    def do_unfetched(self, server_id: str) -> None:
        self.region.fetched(server_id, ok=False)

    # ----------------------------------------------------------------- looking

    def do_show(self, *ids: str) -> None:
        for server_id in ids or self.region.servers:
            server = self.region.servers[server_id]
            if not server.is_up:
                self.say(f"{server_id} down")
                continue
            core, status = server.core, server.core.status()
            log = " ".join(map(_told_entry, core.entries(status.first_index, status.last)))
            start = f"({status.first_index - 1}) " if status.first_index > 1 else ""
            vote = f" vote={core.vote}" if core.vote else ""
            self.say(
                f"{server_id} {status.role} term={status.term}{vote} commit={status.commit} "
                f"durable={status.durable} applied={status.applied} log={start}{log}".rstrip()
            )

    def do_config(self, server_id: str) -> None:
        status = self.region.core(server_id).status()
        self.say(f"{server_id} config {told_config(status.config)} index={status.config_index}")

    def do_peers(self, server_id: str) -> None:
        for peer in self.region.core(server_id).status().peers:
            self.say(f"{peer.id} {peer.mode} match={peer.match} next={peer.next} inflight={peer.inflight}")

    def do_wire(self, *which: str) -> None:
        for message in self.region.wire:
            if _wanted(which)(message):
                self.say(told(message))

    def do_applied(self, server_id: str) -> None:
        payloads = [each.payload.decode() for each in self.region.servers[server_id].applied if each.kind == 1]
        self.say(f"{server_id} applied {' '.join(payloads) or 'nothing'}")


_KINDS: dict[type[Message], str] = {
    PreVote: "prevote",
    PreVoteReply: "prevote-reply",
    Vote: "vote",
    VoteReply: "vote-reply",
    Append: "append",
    AppendReply: "append-reply",
    Heartbeat: "heartbeat",
    HeartbeatReply: "heartbeat-reply",
    SnapshotOffer: "snapshot-offer",
    SnapshotDone: "snapshot-done",
    TimeoutNow: "timeout-now",
    ReadIndex: "read-index",
    ReadIndexReply: "read-index-reply",
    Diverged: "diverged",
}
_CLASSES = {kind: cls for cls, kind in _KINDS.items()}


def told(message: Message) -> str:
    """One line for one message."""
    link = f"{message.sender}->{message.to} {_KINDS[type(message)]} term={message.term}"
    match message:
        case Append():
            entries = " ".join(f"{each.index}:{_told_entry(each)}" for each in message.entries)
            return f"{link} prev={message.prev_index}/{message.prev_term} commit={message.commit} [{entries}]"
        case AppendReply(ok=True):
            return f"{link} ok {message.index}"
        case AppendReply():
            return f"{link} no {message.index} hint={message.hint_index}/{message.hint_term}"
        case Vote():
            return f"{link} last={message.last_index}/{message.last_term}" + (" force" if message.force else "")
        case PreVote():
            return f"{link} last={message.last_index}/{message.last_term}"
        case VoteReply() | PreVoteReply():
            return f"{link} {'yes' if message.granted else 'no'}"
        case Heartbeat():
            return f"{link} commit={message.commit} round={message.round}"
        case HeartbeatReply():
            return f"{link} round={message.round}"
        case SnapshotOffer():
            return f"{link} index={message.meta.index}/{message.meta.term}"
        case SnapshotDone():
            return f"{link} index={message.index} {'ok' if message.ok else 'failed'}"
        case ReadIndexReply():
            return f"{link} index={message.index}"
        case _:
            return link


def _made(kind: str, sender: str, to: str, fields: dict[str, str]) -> Message:
    values: dict[str, object] = {"sender": sender, "to": to}
    for name, text in fields.items():
        if name in ("prev", "last", "hint"):
            values[f"{name}_index"], values[f"{name}_term"] = map(int, text.split("/"))
        elif name == "entries":
            values["entries"] = tuple(map(_entry, text.split(",")))
        elif name in ("granted", "ok", "force"):
            values[name] = text == "yes"
        elif name == "expected":
            values[name] = text.encode()
        else:
            values[name] = int(text)
    return _CLASSES[kind](**values)  # type: ignore[arg-type]


def _entry(text: str) -> Entry:
    """`3/2:a` is the command `a` at index 3 in term 2."""
    index, term, payload = re.split("[/:]", text)
    return Entry(int(index), int(term), EntryKind.COMMAND, payload.encode())


def _told_entry(entry: Entry) -> str:
    what = {EntryKind.EMPTY: "-", EntryKind.CONFIG: "config"}.get(entry.kind)
    return f"{entry.term}.{what or entry.payload.decode()}"


def _wanted(which: tuple[str, ...]) -> Callable[[Message], bool]:
    """`1->2 append`: this link, this kind; either may be missing, `*->2` and `1->*` work too."""
    links = [each.split("->") for each in which if "->" in each]
    kinds = [_CLASSES[each] for each in which if "->" not in each]

    def is_wanted(message: Message) -> bool:
        on_link = any(s in ("*", message.sender) and t in ("*", message.to) for s, t in links)
        return (on_link or not links) and (type(message) in kinds or not kinds)

    return is_wanted


def _change(what: str, args: list[str]) -> ConfigChange:
    match what, args:
        case "add", [server_id]:
            return AddLearner(a_server(server_id))
        case "readdress", [server_id]:
            return Readdress(a_server(server_id))
        case "promote", [server_id]:
            return Promote(server_id)
        case "demote", [server_id]:
            return Demote(server_id)
        case "remove", [server_id]:
            return Remove(server_id)
        case "replace", [leaving, joining]:
            return Replace(leaving, joining)
    raise ValueError(f"no such change: {what} {args}")


def _told_answer(answer: object) -> str:
    match answer:
        case Accepted(first, last, _) if first == last:
            return f"accepted {first}"
        case Accepted(first, last, _):
            return f"accepted {first}..{last}"
        case Refused(reason, leader, _):
            return f"refused: {reason}" + (f" (ask {leader})" if leader else "")
    raise TypeError(answer)

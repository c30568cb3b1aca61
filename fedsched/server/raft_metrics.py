"""Raft's figures for operators, read off the runner whenever somebody looks; nothing is counted twice."""

from __future__ import annotations

from typing import Final

from fedsched.raft.runner import RaftRunner
from fedsched.telemetry.metrics import Registry, gauge

_TOTALS: Final = {
    name: gauge(f"raft.{name}", text, unit=unit)
    for name, text, unit in (
        ("term", "current term", ""),
        ("is_leader", "1 while this server leads", ""),
        ("epoch", "rises with every change of role, leader or term", ""),
        ("commit_index", "highest index known to be committed", ""),
        ("applied_index", "highest index applied to the state", ""),
        ("last_index", "last index of the log", ""),
        ("durable_index", "last index that is synced to disk here", ""),
        ("log_bytes", "bytes of the log kept in memory and on disk", "bytes"),
        ("snapshot_index", "index of the newest snapshot", ""),
        ("snapshots_made", "snapshots cut since the start", ""),
        ("snapshots_installed", "snapshots received from a leader and installed since the start", ""),
        ("snapshot_seconds", "time the newest snapshot took", "seconds"),
        ("leader_contact_seconds", "time since the leader was last heard", "seconds"),
        ("open_proposals", "proposals waiting for their commit", ""),
        ("loop_lag_seconds", "how late the newest tick was", "seconds"),
        ("longest_loop_lag_seconds", "how late the latest tick of all was", "seconds"),
        ("longest_apply_slice_seconds", "longest time entries were applied without a pause", "seconds"),
        ("sync_last_seconds", "duration of the newest group commit", "seconds"),
        ("sync_longest_seconds", "duration of the longest group commit", "seconds"),
        ("syncs", "group commits since the start", ""),
        ("store_waiting_bytes", "bytes waiting for the disk", "bytes"),
        ("foreign_messages", "messages dropped because they were for somebody else", ""),
    )
}
_COUNTERS: Final = gauge("raft.events", "what the core has counted since the start", labels=("event",))
_PEERS: Final = {
    name: gauge(f"raft.peer.{name}", text, labels=("peer",), unit=unit)
    for name, text, unit in (
        ("match_index", "highest index this peer is known to hold", ""),
        ("lag", "entries this peer is behind", ""),
        ("inflight", "append messages on their way to this peer", ""),
        ("contact_seconds", "time since this peer was last heard", "seconds"),
        ("link_up", "1 while our link to this peer is up", ""),
    )
}


def watch_raft(raft: RaftRunner, registry: Registry) -> None:
    """Have the registry read this runner's figures before it shows them."""
    totals = {name: registry.gauge(spec) for name, spec in _TOTALS.items()}
    peers = {name: registry.gauges(spec) for name, spec in _PEERS.items()}
    counters = registry.gauges(_COUNTERS)
    tick_s = raft.settings.tick_s

    def read() -> None:
        status, store, snapshots = raft.core.status(), raft.store.statistics(), raft.snapshotter
        values = {
            "term": status.term,
            "is_leader": int(raft.is_leader),
            "epoch": status.epoch,
            "commit_index": status.commit,
            "applied_index": raft.applier.applied,
            "last_index": status.last,
            "durable_index": status.durable,
            "log_bytes": status.log_bytes,
            "snapshot_index": status.snapshot_index,
            "snapshots_made": snapshots.made,
            "snapshots_installed": snapshots.installed,
            "snapshot_seconds": snapshots.last_duration_s,
            "leader_contact_seconds": status.leader_contact_ticks * tick_s,
            "open_proposals": raft.open_proposals,
            "loop_lag_seconds": raft.loop_lag_s,
            "longest_loop_lag_seconds": raft.longest_lag_s,
            "longest_apply_slice_seconds": raft.applier.longest_slice_s,
            "sync_last_seconds": store.sync_last_s,
            "sync_longest_seconds": store.sync_max_s,
            "syncs": store.groups,
            "store_waiting_bytes": store.waiting_bytes,
            "foreign_messages": raft.transport.foreign_messages,
        }
        for name, value in values.items():
            totals[name].set(value)
        for event, count in status.counters.items():
            counters.labels(event).set(count)
        links = raft.transport.links_up()
        names = {server.id: server.name for server in status.config.servers}
        for server_id, is_up in links.items():
            peers["link_up"].labels(names.get(server_id, server_id)).set(int(is_up))
        for peer in status.peers:
            label = names.get(peer.id, peer.id)
            peers["match_index"].labels(label).set(peer.match)
            peers["lag"].labels(label).set(max(0, status.last - peer.match))
            peers["inflight"].labels(label).set(peer.inflight)
            peers["contact_seconds"].labels(label).set(peer.last_contact_ticks * tick_s)

    registry.before_showing(read)

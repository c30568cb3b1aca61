"""Carries out the faults of a schedule. Each ends by itself, or when the run heals.

Everything stays within the fault model: any number of servers may be down or cut off for a time, but a disk is lost for
good (wiped or damaged) only while the servers that remain can still decide in every config that might be in force. A
wiped server comes back under a new id as a learner; its old id never speaks again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fedsched.sim.cores import SimServer
from fedsched.sim.region import Region

Args = dict[str, Any]


def carry_out(region: Region, kind: str, args: Args) -> None:
    """Do this fault now; one whose target does not exist (any more) does nothing."""
    region.fired[kind] = region.fired.get(kind, 0) + _HANDLERS[kind](region, args)


def _cut(region: Region, args: Args) -> bool:
    ids = region.ids()
    if args["shape"] == "pair":
        ends = sorted({server.id for slot in args["pair"] if (server := region.at(slot)) is not None})
        pairs = [(ends[0], ends[1])] if len(ends) == 2 else []
    else:
        if args["shape"].startswith("leader"):
            leader = region.leader()
            side = {leader.id} if leader is not None else set()
            friend = region.at(args["pair"][0])
            if side and friend is not None and args["shape"] == "leader_and_one":
                side.add(friend.id)
        else:
            side = {server.id for slot in args["side"] if (server := region.at(slot)) is not None}
        pairs = [(one, other) for one in ids for other in ids if one in side and other not in side]
    for one, other in pairs:
        region.net.cut(one, other, args["for_us"])
        region.net.cut(other, one, args["for_us"])
    return bool(pairs)


def _one_way(region: Region, args: Args) -> bool:
    server = region.at(args["slot"])
    others = [other for other in region.ids() if server is not None and other != server.id]
    for other in others:
        assert server is not None
        sender, to = (other, server.id) if args["way"] == "in" else (server.id, other)
        region.net.cut(sender, to, args["for_us"])
    return bool(others)


def _midstream(region: Region, args: Args) -> bool:
    server = region.at(args["slot"])
    if server is None:
        return False
    died = 0
    for other in region.ids():
        died += region.net.reset(server.id, other, args["survivors"])
        died += region.net.reset(other, server.id, args["survivors"])
        peer = region.find(other)
        if args["is_noticed"] and peer is not None and peer is not server:
            region.world.after(0, server, "broken", server.peer_unreachable, other, detail=other)
            region.world.after(0, peer, "broken", peer.peer_unreachable, server.id, detail=server.id)
    return died > 0


def _clog(region: Region, args: Args) -> bool:
    server = region.at(args["slot"])
    others = [other for other in region.ids() if server is not None and other != server.id]
    for other in others:
        assert server is not None
        sender, to = (other, server.id) if args["way"] == "in" else (server.id, other)
        region.net.clog(sender, to)
        region.world.after(args["for_us"], None, "unclog", region.net.unclog, sender, to, detail=f"{sender}>{to}")
    return bool(others)


def _slow_sync(region: Region, args: Args) -> bool:
    server = region.at(args["slot"])
    if server is None:
        return False
    server.disk.slow_us = args["extra_us"]
    region.world.after(args["for_us"], None, "fastdisk", _set_slow, server, 0, detail=server.id)
    return True


def _set_slow(server: SimServer, extra_us: int) -> None:
    server.disk.slow_us = extra_us


def _sync_error(region: Region, args: Args) -> bool:
    server = region.at(args["slot"])
    if server is None or not server.is_up:
        return False
    server.disk.fails_next_sync = True
    region.restart_us[server.id] = args["down_us"]
    return True


def _disk_full(region: Region, args: Args) -> bool:
    server = region.at(args["slot"])
    if server is None:
        return False
    server.disk.is_full = True
    region.world.after(args["for_us"], None, "space", _space_returns, server, detail=server.id)
    return True


def _space_returns(server: SimServer) -> None:
    server.disk.is_full = False


def _bit_flip(region: Region, args: Args) -> bool:
    """Turn a bit over on a stopped server's disk; its next start must refuse."""
    server = region.at(args["slot"])
    if server is None or not server.is_up or not server.disk.durable.entries or not region.can_lose(server):
        return False
    server.crash()
    if not server.disk.durable.entries:
        return False
    server.disk.flips.append((args["entry"], args["bit"]))
    return True


def _crash(region: Region, args: Args) -> bool:
    server = region.at(args["slot"])
    if server is None or not server.is_up:
        return False
    region.restart_us[server.id] = args["down_us"]
    server.crash()
    return True


def _crash_point(region: Region, args: Args) -> bool:
    server = region.at(args["slot"])
    if server is None or not server.is_up:
        return False
    region.restart_us[server.id] = args["down_us"]
    server.crash_at = args["point"]
    return True


def _crash_all(region: Region, args: Args) -> bool:
    for server in region.members():
        region.restart_us[server.id] = args["down_us"]
        server.crash()
    return True


def _wipe(region: Region, args: Args) -> bool:
    server = region.at(args["slot"])
    if server is None or not region.can_lose(server):
        return False
    server.crash()
    region.replace_lost(server)
    return True


def _clone(region: Region, args: Args) -> bool:
    """Start a second process on a copy of this server's disk, while the first one goes on."""
    server = region.at(args["slot"])
    if server is None:
        return False
    region.start_clone(server, args["for_us"])
    return True


def _pause(region: Region, args: Args) -> bool:
    server = region.at(args["slot"])
    if server is None or not server.is_up or server.is_paused:
        return False
    server.clock.pause(args["for_us"])
    return True


def _clock_rates(region: Region, args: Args) -> bool:
    server = region.at(args["slot"])
    if server is None:
        return False
    server.clock.rate = args["rate"]
    return True


def _leap(region: Region, args: Args) -> bool:
    """A server's clock leaps ahead by two election timeouts: it campaigns. Used by hand-written schedules only."""
    server = region.at(args["slot"])
    for _ in range(2 * region.options.election_ticks):
        if server is not None and server.core is not None and server.core.role == "follower":
            server.tick()
    return server is not None


_HANDLERS: dict[str, Callable[[Region, Args], bool]] = {
    "cut": _cut,
    "one_way": _one_way,
    "midstream": _midstream,
    "clog": _clog,
    "slow_sync": _slow_sync,
    "sync_error": _sync_error,
    "disk_full": _disk_full,
    "bit_flip": _bit_flip,
    "crash": _crash,
    "crash_point": _crash_point,
    "crash_all": _crash_all,
    "wipe": _wipe,
    "clone": _clone,
    "pause": _pause,
    "clock_rates": _clock_rates,
    "leap": _leap,
}

"""`region ...` and `operator federation ...`: the regions, as the agent's servers know them.

Nothing here asks another region: it answers at once even if all others are gone.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedsched.model.record import to_api
from fedsched.rpc.method import Empty
from fedsched.rpc.methods.server import REGION_LIST, RegionRow
from fedsched.verbs.flags import Given
from fedsched.verbs.terminal import Terminal
from fedsched.verbs.verb import FAILED, JSON, OK, TEMPLATE, Regions, Verbs
from fedsched.verbs.view import columns

VERBS = Verbs()
HEAD = ("Name", "State", "Servers", "Leader", "Round Trip", "Clock Skew", "Build")
STATUS_HEAD = ("Region", "Alive", "Known", "Leader", "Round Trip", "Clock Skew", "State")
HEALTHY = "healthy"
UNKNOWN = "<unknown>"


@VERBS.verb(
    "region list",
    "list the regions and how they are",
    doc="Lists every region that the agent's servers know, also those of which none answers. Other regions are shown as"
    " gossip has them: a few seconds may pass before a death is known. The round trip is that to the nearest server of"
    " the region, the skew how far its clocks are ahead; both as seen from the server that answers.",
    flags=(JSON, TEMPLATE),
    regions=Regions.ITSELF,
)
def list_(terminal: Terminal, given: Given) -> int:
    found = _regions(terminal)
    if terminal.formatted(given, lambda: [to_api(region) for region in found]):
        return OK
    rows = [
        (
            f"{one.name}*" if one.is_own else one.name,
            one.state,
            f"{one.servers_up}/{one.servers}",
            one.leader or UNKNOWN,
            *_way(one),
            ", ".join(one.builds),
        )
        for one in found
    ]
    terminal.write(columns(HEAD, rows))
    terminal.write("\n* the region of the agent that was asked; -region names another one\n")
    _warn_of_clocks(terminal, found)
    return OK


@VERBS.verb(
    "operator federation status",
    "say whether the regions are well, a line for each",
    doc="Says for each region how many of its servers are alive and known, who leads, and how far it is. Exits 1 if a"
    " region has lost its majority, or all its servers, or if nobody is known to lead it.",
    flags=(JSON, TEMPLATE),
    regions=Regions.ITSELF,
)
def federation_status(terminal: Terminal, given: Given) -> int:
    found = _regions(terminal)
    code = OK if all(_is_at_work(one) for one in found) else FAILED
    if terminal.formatted(given, lambda: [to_api(region) for region in found]):
        return code
    rows = [(one.name, one.servers_up, one.servers, one.leader or UNKNOWN, *_way(one), one.state) for one in found]
    terminal.write(columns(STATUS_HEAD, rows))
    _warn_of_clocks(terminal, found)
    return code


def _regions(terminal: Terminal) -> Sequence[RegionRow]:
    """All regions, or those that are named; a single one is asked for its own view of all."""
    if not terminal.target.names_several:
        return terminal.client.call(REGION_LIST, Empty()).regions
    from fedsched.verbs.fan_out import named_regions

    found = terminal.client.call(REGION_LIST, Empty(), region="").regions
    wanted = named_regions(terminal)
    known = {one.name: one for one in found}
    return [known.get(name, RegionRow(name=name, state="unknown")) for name in wanted]


def _is_at_work(region: RegionRow) -> bool:
    return 2 * region.servers_up > region.servers and bool(region.leader)


def _way(region: RegionRow) -> tuple[str, str]:
    """How far it is, and how far apart the clocks are."""
    trip = "-" if region.is_own else UNKNOWN if region.round_trip_ms is None else f"{region.round_trip_ms:.1f} ms"
    unknown = "-" if region.is_own else UNKNOWN
    return trip, unknown if region.skew_ms is None else _signed(region.skew_ms)


def _signed(ms: float) -> str:
    return f"{ms:+.0f} ms" if abs(ms) < 1000 else f"{ms / 1000:+.1f} s"


def _warn_of_clocks(terminal: Terminal, found: Sequence[RegionRow]) -> None:
    for one in found:
        if one.is_skewed and one.skew_ms is not None:
            terminal.warn(
                f"Warning: a clock of region {one.name} is {abs(one.skew_ms) / 1000:.1f} s"
                f" {'ahead of' if one.skew_ms > 0 else 'behind'} ours; deadlines and expiry times are compared across"
                " regions: let both follow the same time"
            )

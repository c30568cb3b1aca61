"""Offences are put down to whoever commits them, and no stranger can fill the log or the metrics."""

from __future__ import annotations

from fedsched.model.errors import Unavailable
from fedsched.telemetry.log import Event, Hub
from fedsched.telemetry.metrics import SERIES_REFUSED, Registry
from fedsched.wire.effects import Closed
from fedsched.wire.errors import ProtocolViolation
from fedsched.wire.frames import FrameError
from fedsched.wire.offenders import HOSTS_MAX, OFFENCES, SERVERS_MAX, Offenders, is_violation


class Port:
    def __init__(self) -> None:
        self.hub, self.metrics = Hub(), Registry()
        self.warnings = self.hub.subscribe("warn", capacity=1000)
        self.all = self.hub.subscribe("debug", capacity=10_000)
        self.offenders = Offenders("rpc", metrics=self.metrics, log=self.hub.logger("test"))

    def note(self, host: str, server: str = "") -> None:
        self.offenders.note("bad", host=host, peer=f"{host}:7", server=server)

    def counts(self) -> dict[str, float]:
        return {labels[1]: one.value for labels, one in self.metrics.counters(OFFENCES).series.items()}


def fields(event: Event) -> dict[str, object]:
    return dict(event.fields)


def test_every_peer_has_its_own_count_servers_by_name() -> None:
    port = Port()
    port.note("10.0.0.1")
    port.note("10.0.0.2", server="s2")
    port.note("10.0.0.1")
    port.note("10.0.0.9", server="s2")  # it moved

    assert port.counts() == {"10.0.0.1": 2, "s2": 2}
    assert fields(port.all.take()[1]) == {
        "port": "rpc",
        "peer": "10.0.0.2:7",
        "server": "s2",
        "why": "bad",
        "offences": 1,
    }


def test_a_peer_is_warned_of_ever_more_seldom() -> None:
    port = Port()
    for _ in range(1200):
        port.note("10.0.0.1")
    port.note("10.0.0.2")

    assert [fields(event)["offences"] for event in port.warnings.take()] == [1, 10, 100, 1000, 1]
    assert len(port.all.take()) == 1201


def test_hosts_beyond_the_first_share_a_count_and_servers_never_do() -> None:
    port = Port()
    for number in range(HOSTS_MAX + 10):
        port.note(f"host-{number}")
        port.note(f"host-{number}")
    for number in range(SERVERS_MAX):
        port.note("10.0.0.1", server=f"s{number}")

    counts = port.counts()
    assert counts["other"] == 20
    assert len(counts) == HOSTS_MAX + SERVERS_MAX + 1
    assert counts["host-0"] == 2
    assert counts[f"s{SERVERS_MAX - 1}"] == 1
    assert port.metrics.counter(SERIES_REFUSED).value == 0  # bounded here, before the metric has to


def test_only_broken_rules_are_violations() -> None:
    assert is_violation(Closed(ProtocolViolation.code, "x"))
    assert is_violation(Closed(FrameError.code, "x"))
    assert not is_violation(Closed(Unavailable.code, "peer was silent"))

"""One agent: its HTTP port, its settings, its start and its stop."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import trio

from fedsched.agent import agent as agent_module
from fedsched.agent.agent import Agent
from fedsched.agent.config import (
    Addresses,
    Advertise,
    AgentConfig,
    AutopilotSettings,
    Limits,
    PlanRejectionTracker,
    Ports,
    ServerJoin,
    ServerSettings,
    TelemetrySettings,
    TlsSettings,
)
from fedsched.agent.server_half import server_options
from fedsched.model.errors import BadRequest, Unavailable
from fedsched.raft.datadir import SpaceLimits
from fedsched.rpc.caller import LinkCaller
from fedsched.rpc.context import CallMeta
from fedsched.rpc.method import Empty
from fedsched.rpc.methods.agent import AGENT_METRICS, AGENT_SELF, AgentMetricsRequest
from fedsched.rpc.methods.job import JOB_GET, JOB_REGISTER, JobRegisterRequest, JobRequest
from fedsched.server.leader.rejections import RejectionSettings
from fedsched.telemetry.log import Hub
from fedsched.wire.address import parse_address
from fedsched.wire.errors import RemoteError
from fedsched.wire.offenders import OFFENCES
from fedsched.wire.tls import TlsOptions
from fedsched.wire.websocket import connect_websocket
from tests.agent.agents import a_config, an_agent, connected, run_agents
from tests.builders import a_job
from tests.server.certificates import NEEDS_OPENSSL, an_authority
from tests.server.region import until


def test_a_lone_agent_answers_calls_over_its_websocket(tmp_path: Path) -> None:
    agent = an_agent(a_config(tmp_path))

    async def scenario() -> None:
        async with connected(agent.http_address) as caller:
            written, meta = await caller.call(JOB_REGISTER, JobRegisterRequest(job=a_job("web", region="")))
            read, _ = await caller.call(JOB_GET, JobRequest(job_id="web"))
            itself, _ = await caller.call(AGENT_SELF, Empty())

        assert read.job.job_modify_index == written.job_modify_index
        assert meta.server == "a1"
        assert itself.config["server"]["raft_multiplier"] == 0.2
        assert itself.config["server"]["server_join"]["retry_join"] == []

    run_agents(agent, scenario=scenario)
    assert agent.http_address.startswith("http://127.0.0.1:")


def test_a_blocking_query_over_the_websocket_ends_with_its_news_and_with_its_link(tmp_path: Path) -> None:
    agent = an_agent(a_config(tmp_path))

    async def scenario() -> None:
        async with connected(agent.http_address) as caller, connected(agent.http_address) as leaving:
            written, _ = await caller.call(JOB_REGISTER, JobRegisterRequest(job=a_job("web", region="")))
            priorities = []

            async def wait(through: LinkCaller, scope: trio.CancelScope) -> None:
                with scope:
                    meta = CallMeta(min_index=written.index)
                    reply, _ = await through.call(JOB_GET, JobRequest(job_id="web"), meta)
                    priorities.append(reply.job.priority)

            async with trio.open_nursery() as nursery:
                no_longer = trio.CancelScope()
                nursery.start_soon(wait, caller, trio.CancelScope())
                nursery.start_soon(wait, leaving, no_longer)
                await until("both wait", lambda: len(agent.server.waits) == 4)  # for the job and for its versions
                no_longer.cancel()
                await until("one waits", lambda: len(agent.server.waits) == 2)
                job = a_job("web", region="", priority=70)
                await caller.call(JOB_REGISTER, JobRegisterRequest(job=job))

            assert priorities == [70]

    run_agents(agent, scenario=scenario)


def test_an_agent_that_is_nothing_is_refused() -> None:
    with pytest.raises(BadRequest, match="nothing to do"):
        an_agent(AgentConfig(name="a1"))


def test_a_port_in_use_is_named_with_its_setting(tmp_path: Path) -> None:
    first = an_agent(a_config(tmp_path))

    async def scenario() -> None:
        taken = int(first.http_address.rpartition(":")[2])
        second = an_agent(a_config(tmp_path, "a2", ports=Ports(http=taken, rpc=0, serf=0)))
        with pytest.raises(Unavailable) as refused:
            await second.run()

        said = f"cannot listen on 127.0.0.1:{taken} (HTTP port): "
        assert refused.value.message.startswith(said)
        assert refused.value.hint.endswith("choose another port with ports.http")
        with trio.fail_after(1):
            await second.wait_stopped()

    run_agents(first, scenario=scenario)


def test_a_server_that_cannot_start_takes_its_http_port_with_it(tmp_path: Path) -> None:
    first = an_agent(a_config(tmp_path))

    async def scenario() -> None:
        second = an_agent(a_config(tmp_path))  # on the same data
        with pytest.raises(BaseExceptionGroup):
            await second.run()

        with pytest.raises(OSError, match="all attempts to connect"):
            await trio.open_tcp_stream("127.0.0.1", int(second.http_address.rpartition(":")[2]))

    run_agents(first, scenario=scenario)


def test_settings_become_the_servers_own() -> None:
    config = AgentConfig(
        name="a1",
        region="eu",
        datacenter="dc2",
        data_dir="/data",
        bind_addr="127.0.0.1",
        addresses=Addresses(rpc="127.0.0.2"),
        advertise=Advertise(rpc="a1.example:14647"),
        ports=Ports(rpc=14647),
        server=ServerSettings(
            enabled=True,
            bootstrap_expect=5,
            server_join=ServerJoin(retry_join=("b", "c"), retry_interval_s=7, retry_max=9),
            peer_address_overrides={"b": "127.0.0.1:9"},
            raft_multiplier=3,
            raft_snapshot_threshold=100,
            raft_trailing_logs=50,
            plan_rejection_tracker=PlanRejectionTracker(enabled=True, node_threshold=7, node_window_s=60),
            ballast_size_bytes=11,
            disk_soft_limit_bytes=4000,
        ),
        autopilot=AutopilotSettings(
            cleanup_dead_servers=False,
            last_contact_threshold_s=1,
            max_trailing_logs=2,
            server_stabilization_time_s=3,
            min_quorum=4,
        ),
        limits=Limits(handshake_timeout_s=6, rpc_max_conns_per_client=8),
    )

    options = server_options(config, None)

    assert (options.name, options.region, options.datacenter) == ("a1", "eu", "dc2")
    assert options.data_dir == Path("/data/server")
    assert (options.rpc_host, options.rpc_port, options.advertise) == ("127.0.0.2", 14647, "a1.example:14647")
    assert (options.bootstrap_expect, options.join) == (5, ("b", "c"))
    assert (options.join_interval_s, options.join_attempts_max) == (7, 9)
    assert options.peer_address_overrides == {"b": "127.0.0.1:9"}
    assert options.raft_multiplier == 3
    assert (options.compaction.snapshot_entries, options.compaction.trailing_entries) == (100, 50)
    autopilot = options.autopilot
    assert (autopilot.cleanup_dead_servers, autopilot.last_contact_threshold_s) == (False, 1)
    assert (autopilot.max_trailing_logs, autopilot.server_stabilization_time_s, autopilot.min_quorum) == (2, 3, 4)
    assert (options.ballast_bytes, options.space_limits) == (11, SpaceLimits(soft_bytes=4000, hard_bytes=1000))
    assert (options.handshake_s, options.connections_per_host_max, options.tls) == (6, 8, None)
    assert options.rejections == RejectionSettings(is_enabled=True, threshold=7, window_s=60)
    unlimited = replace(config, server=replace(config.server, disk_soft_limit_bytes=0))
    assert server_options(unlimited, None).space_limits == SpaceLimits(0, 0, 0, 0)


async def wait_closed(agent: Agent, saying: bytes) -> None:
    """Connect, say something that is no websocket, and return when the agent has closed the connection."""
    async with await trio.open_tcp_stream("127.0.0.1", int(agent.http_address.rpartition(":")[2])) as stream:
        try:
            await stream.send_all(saying)
            while await stream.receive_some():
                pass
        except trio.BrokenResourceError:
            pass


def test_what_is_no_websocket_is_closed_and_the_others_go_on(tmp_path: Path) -> None:
    hub = Hub()
    told = hub.subscribe("debug", capacity=10_000)
    agent = an_agent(a_config(tmp_path, limits=Limits(handshake_timeout_s=0.5)), hub)

    async def scenario() -> None:
        async with connected(agent.http_address) as caller:
            await wait_closed(agent, b"\xff" * 100)
            await wait_closed(agent, b"GET /v1/rpc HTTP/1.1\r\n")  # and then nothing more
            async with trio.open_nursery() as nursery:
                with pytest.raises(RemoteError, match="answered 404: no websocket at '/elsewhere'"):
                    await connect_websocket(nursery, parse_address(agent.http_address), path="/elsewhere")
            await caller.call(AGENT_SELF, Empty())

        assert "http_connection_closed" in [event.name for event in told.take()]

    run_agents(agent, scenario=scenario)


def test_one_connection_too_many_from_one_address_is_closed_and_the_others_go_on(tmp_path: Path) -> None:
    hub = Hub()
    told = hub.subscribe("debug", capacity=10_000)
    agent = an_agent(a_config(tmp_path, limits=Limits(http_max_conns_per_client=2)), hub)

    async def scenario() -> None:
        async with connected(agent.http_address) as caller:
            async with connected(agent.http_address):
                await wait_closed(agent, b"anything")
            await caller.call(AGENT_SELF, Empty())

        (refused,) = [dict(event.fields) for event in told.take() if event.name == "peer_refused"]
        assert refused["peer"].startswith("127.0.0.1:")
        assert (refused["port"], refused["why"]) == ("http", "too many connections: 2 from there")
        assert agent.metrics.counters(OFFENCES).labels("http", "127.0.0.1").value == 1

    run_agents(agent, scenario=scenario)


def test_a_peer_that_breaks_the_rules_of_the_wire_on_the_http_port_is_named_and_counted(tmp_path: Path) -> None:
    hub = Hub()
    told = hub.subscribe("debug", capacity=10_000)
    agent = an_agent(a_config(tmp_path), hub)

    async def scenario() -> None:
        async with trio.open_nursery() as nursery:
            carrier = await connect_websocket(nursery, parse_address(agent.http_address))
            await carrier.send([(b"\x00\x02", b"\xff\xff")])
            count = agent.metrics.counters(OFFENCES).labels("http", "127.0.0.1")
            await until("it is counted", lambda: count.value == 1)
            await carrier.aclose()
            nursery.cancel_scope.cancel()

        (refused,) = [dict(event.fields) for event in told.take() if event.name == "peer_refused"]
        assert refused["why"].startswith("frame header")

    run_agents(agent, scenario=scenario)


def test_figures_roll_over_at_the_interval_that_is_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = an_agent(a_config(tmp_path, telemetry=TelemetrySettings(collection_interval_s=0.1)))

    async def scenario() -> None:
        async with connected(agent.http_address) as caller:
            reply, _ = await caller.call(AGENT_METRICS, AgentMetricsRequest(format="prometheus"))
            assert b"process" in reply.body
        rolled: list[float] = []
        monkeypatch.setattr(agent.metrics, "roll", rolled.append)
        await until("it has rolled twice", lambda: len(rolled) == 2)

    run_agents(agent, scenario=scenario)


def test_a_leader_that_is_stopped_hands_over_and_one_that_leaves_is_taken_out(tmp_path: Path) -> None:
    async def main() -> None:
        with trio.fail_after(30):
            async with trio.open_nursery() as nursery:
                agents: list[Agent] = []
                for number in (1, 2, 3):
                    join = tuple(agent.server.me.address for agent in agents)
                    agents.append(an_agent(a_config(tmp_path, f"a{number}", expect=3, join=join)))
                    await nursery.start(agents[-1].run)

                def leaders() -> list[Agent]:
                    return [agent for agent in agents if agent.server.raft.is_established]

                await until("a leader", leaders)
                old = next(agent for agent in agents if agent.server.raft.is_established)
                term = old.server.raft.core.term

                await old.stop()
                await old.wait_stopped()
                agents.remove(old)
                await until("a successor", leaders)
                assert agents[0].server.raft.core.term == term + 1

                leaving = next(agent for agent in agents if not agent.server.raft.is_established)
                await leaving.stop(leave=True)
                agents.remove(leaving)
                voters = agents[0].server.raft.core.config.voters
                assert leaving.server.me.id not in voters
                await agents[0].stop()

    trio.run(main)


@NEEDS_OPENSSL
def test_with_certificates_the_websocket_speaks_tls_to_those_who_show_one(tmp_path: Path) -> None:
    authority = an_authority(tmp_path / "ca")
    files = authority.server()
    client = authority.certificate("client", "DNS:client.eu.fedsched")
    tls = TlsSettings(ca_file=files.ca_file, cert_file=files.cert_file, key_file=files.key_file)
    agent = an_agent(a_config(tmp_path, tls=tls))

    async def scenario() -> None:
        ours = TlsOptions(ca_cert=files.ca_file, client_cert=client.cert_file, client_key=client.key_file)
        async with connected(agent.http_address, ours) as caller:
            itself, _ = await caller.call(AGENT_SELF, Empty())
        assert itself.name == "a1"
        for address, options in [
            (agent.http_address, TlsOptions(ca_cert=files.ca_file)),  # shows nothing
            (agent.http_address.replace("https", "http"), None),  # speaks plainly
        ]:
            with pytest.raises(ExceptionGroup) as refused:
                async with connected(address, options):
                    pass
            assert refused.group_contains(Unavailable)

    run_agents(agent, scenario=scenario)
    assert agent.http_address.startswith("https://")


def test_the_gossip_key_is_not_among_the_settings_that_are_shown() -> None:
    config = AgentConfig(server=ServerSettings(enabled=True, encrypt="c2VjcmV0c2VjcmV0c2VjcmV0"))

    assert agent_module._plain(config)["server"]["encrypt"] == "<hidden>"
    assert agent_module._plain(AgentConfig())["server"]["encrypt"] == ""

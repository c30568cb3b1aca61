"""Settings written as a file are read back as they were."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from fedsched.agent.config import AgentConfig, ServerJoin, ServerSettings
from fedsched.agent.config_client import ClientSection
from fedsched.agent.config_load import load_config
from fedsched.agent.config_text import config_text
from fedsched.agent.region_file import read_regions, with_ports_chosen

SHIPPED = Path(__file__).parents[2] / "regions"


def read_back(config: AgentConfig, directory: Path) -> AgentConfig:
    file = directory / "agent.toml"
    file.write_text(config_text(config))
    return load_config(paths=[str(file)]).config


@pytest.mark.parametrize("region", read_regions(SHIPPED), ids=lambda region: region.name)
def test_every_agent_of_the_shipped_regions_can_be_started_from_a_file(region: object, tmp_path: Path) -> None:
    chosen = with_ports_chosen(region.on_any_ports())  # type: ignore[attr-defined]
    configs = [chosen.agent_config(server, tmp_path, wan=("127.0.0.1:4648",)) for server in chosen.servers]
    configs += [chosen.client_config(client, tmp_path, at) for at, client in enumerate(chosen.clients)]

    for config in configs:
        assert read_back(config, tmp_path) == config


def test_what_is_as_always_is_not_written() -> None:
    assert config_text(AgentConfig()) == ""
    assert config_text(replace(AgentConfig(), region="eu")) == 'region = "eu"\n'


def test_every_kind_of_setting_comes_back(tmp_path: Path) -> None:
    config = AgentConfig(
        name="a",
        data_dir='/a "quoted" \\ path/ü',
        log_levels=MappingProxyType({"raft": "debug", "gossip": "warn"}),
        shutdown_grace_s=0.25,
        log_rotate_bytes=5000,
        server=ServerSettings(
            enabled=True,
            bootstrap_expect=3,
            raft_multiplier=2.5,
            server_join=ServerJoin(retry_join=("127.0.0.1:1", "127.0.0.1:2"), retry_interval_s=90.0),
            peer_address_overrides=MappingProxyType({"eu-2": "127.0.0.1:9000"}),
        ),
        client=ClientSection(enabled=True, plugin=MappingProxyType({"raw_exec": MappingProxyType({"enabled": True})})),
    )

    assert read_back(config, tmp_path) == config

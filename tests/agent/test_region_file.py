from __future__ import annotations

from pathlib import Path

import pytest

from fedsched.agent.region_file import read_region, read_regions
from fedsched.agent.settings import BadSetting

SHIPPED = Path(__file__).parents[2] / "regions"
TWO = 'name = "us"\n[[servers]]\nname = "us-1"\nports = {{ rpc = {port} }}\n[[servers]]\nname = "us-2"\n'


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_shipped_region_has_three_servers_that_join_each_other() -> None:
    (eu,) = [region for region in read_regions(SHIPPED) if region.name == "eu"]

    configs = [eu.agent_config(server, "/data") for server in eu.servers]

    assert [config.name for config in configs] == ["eu-1", "eu-2", "eu-3"]
    assert {config.server.bootstrap_expect for config in configs} == {3}
    assert configs[0].ports.http == 4646
    assert configs[0].server.server_join.retry_join == ("127.0.0.1:4657", "127.0.0.1:4667")
    assert configs[1].data_dir == "/data/eu/eu-2"


def test_the_shipped_regions_are_two_alike_with_clients_that_share_nothing_on_their_host() -> None:
    regions = read_regions(SHIPPED)
    clients = [
        region.client_config(client, "/data", number)
        for number, (region, client) in enumerate((region, client) for region in regions for client in region.clients)
    ]

    assert [(region.name, len(region.servers), len(region.clients)) for region in regions] == [
        ("eu", 3, 2),
        ("us", 3, 2),
    ]
    assert [config.name for config in clients] == ["eu-node-1", "eu-node-2", "us-node-1", "us-node-2"]
    assert clients[2].client.servers == ("127.0.0.1:4747", "127.0.0.1:4757", "127.0.0.1:4767")
    assert all(config.client.enabled and config.client.no_host_uuid and not config.server.enabled for config in clients)
    ranges = [range(one.client.min_dynamic_port, one.client.max_dynamic_port + 1) for one in clients]
    assert len(set().union(*ranges)) == sum(map(len, ranges))
    assert clients[3].data_dir == "/data/us/us-node-2"


def test_what_a_region_file_says_of_a_client_reaches_its_settings(in_tmp: Path) -> None:
    Path("us.toml").write_text(
        TWO.format(port=5)
        + "[[clients]]\nname = 'n'\nhttp = 7\nnode_class = 'big'\nnode_pool = 'gpu'\nmeta = { rack = 'r1' }\n"
    )
    region = read_region("us.toml")
    config = region.client_config(region.clients[0], "/d")

    assert (config.ports.http, config.ports.rpc) == (7, 0)
    assert (config.client.node_class, config.client.node_pool, dict(config.client.meta)) == (
        "big",
        "gpu",
        {"rack": "r1"},
    )
    assert region.on_any_ports().clients[0].http == 0


def test_ports_left_out_are_any_and_cannot_be_joined_beforehand(in_tmp: Path) -> None:
    Path("us.toml").write_text(TWO.format(port=5))
    region = read_region("us.toml")
    first, second = region.servers

    assert (first.ports.http, first.ports.rpc, second.ports.rpc) == (0, 5, 0)
    assert region.agent_config(first, "/d").server.server_join.retry_join == ()
    assert region.agent_config(second, "/d").server.server_join.retry_join == ("127.0.0.1:5",)
    assert region.agent_config(first, "/d", join=("x:1",)).server.server_join.retry_join == ("x:1",)
    assert region.on_any_ports().servers[0].ports.rpc == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nme = 'x'", 'r.toml: unknown setting nme = "x" (did you mean name?)'),
        ("[[servers]]\nname = 'a'", 'r.toml: the region has no name (begin with name = "r")'),
        ("name = 'x'", "r.toml: region x has 0 servers (1 to 9, best 3, each with [[servers]])"),
        ("name = 'x'\nservers = 3", "r.toml: servers is not a list of tables (begin each server with [[servers]])"),
        (
            "name = 'x'\n[[servers]]\nname = 'a'\n[[servers]]\nname = 'a'",
            'r.toml: servers[1] has "a" twice (every server needs a name of its own)',
        ),
        ("name = 'x'\n[[servers]]\n", "r.toml: servers[0] has no name (every server needs a name of its own)"),
        (
            "name = 'x'\n[[servers]]\nname = 'a'\nport = 1",
            "r.toml: unknown setting servers[0].port = 1 (did you mean servers[0].ports?)",
        ),
        (
            "name = 'x'\n[[servers]]\nname = 'a'\n[[clients]]\nname = 'a'",
            'r.toml: clients[0] has "a" twice (every client needs a name of its own)',
        ),
        (
            "name = 'x'\nclients = 'a'\n[[servers]]\nname = 'a'",
            "r.toml: clients is not a list of tables (begin each client with [[clients]])",
        ),
        (
            "name = 'x'\n[[servers]]\nname = 's'\n" + "".join(f"[[clients]]\nname = 'c{n}'\n" for n in range(17)),
            "r.toml: region x has 17 clients (at most 16)",
        ),
        (
            "name = 'x'\n[[servers]]\nname = 'a'\n[[clients]]\nname = 'b'\nhttp = 70000",
            "r.toml: clients[0].http = 70000 is too large (at most 65535)",
        ),
        ("name", "r.toml: not valid TOML: Expected '=' after a key"),
        ("#" * 300_000, "r.toml: larger than 262144 bytes (is this a region file?)"),
    ],
)
def test_a_wrong_region_file_is_refused_by_name(in_tmp: Path, text: str, message: str) -> None:
    Path("r.toml").write_text(text)

    with pytest.raises(BadSetting) as caught:
        read_region("r.toml")

    assert str(caught.value).startswith(message)


def test_a_missing_file_or_an_empty_directory_is_named(in_tmp: Path) -> None:
    with pytest.raises(BadSetting, match=r"none\.toml: cannot be read: No such file"):
        read_region("none.toml")
    with pytest.raises(BadSetting, match=r"\.: no region files"):
        read_regions(".")


def test_two_files_must_not_claim_the_same_region_or_port(in_tmp: Path) -> None:
    Path("a.toml").write_text(TWO.format(port=5))
    Path("b.toml").write_text(TWO.format(port=6))
    with pytest.raises(BadSetting, match=r"b\.toml: region us is already described by a\.toml"):
        read_regions(".")

    Path("b.toml").write_text(TWO.format(port=5).replace("us", "eu"))
    with pytest.raises(BadSetting, match=r"b\.toml: port 5 of eu-1 rpc is taken by us-1 rpc"):
        read_regions(".")

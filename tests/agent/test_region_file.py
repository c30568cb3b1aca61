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

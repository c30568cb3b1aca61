"""Refusals are quoted whole: the text is what an operator has at three in the morning."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from fedsched.agent.config import AgentConfig
from fedsched.agent.config_check import is_loopback, split_host_port
from fedsched.agent.config_load import Loaded, flags_of_settings, load_config, variable_of
from fedsched.agent.config_reference import reference_page
from fedsched.agent.settings import BadSetting, Kind, all_settings, settings_of

GOOD = """
name = "eu-1"
region = "eu"
data_dir = "/var/lib/fedsched"
[server]
enabled = true
bootstrap_expect = 1
"""


@pytest.fixture
def in_tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """File names in messages become short and the same everywhere."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def loaded(
    text: str = GOOD, environ: Mapping[str, str] | None = None, flags: Mapping[str, Sequence[str]] | None = None
) -> Loaded:
    Path("a.toml").write_text(text)
    return load_config(paths=["a.toml"], environ=environ, flags=flags)


def refusal(text: str, **more: Mapping[str, str]) -> str:
    with pytest.raises(BadSetting) as caught:
        loaded(text, **more)  # type: ignore[arg-type]
    return str(caught.value)


def test_a_file_gives_what_it_says_and_defaults_for_the_rest(in_tmp: Path) -> None:
    config = loaded().config

    assert (config.name, config.region, config.server.bootstrap_expect) == ("eu-1", "eu", 1)
    assert (config.ports.http, config.ports.rpc, config.ports.serf) == (4646, 4647, 4648)
    assert (config.bind_addr, config.datacenter, config.log_level) == ("127.0.0.1", "dc1", "info")


def test_every_kind_of_value_is_read(in_tmp: Path) -> None:
    config = loaded(
        GOOD
        + 'ballast_size = "1MiB"\nraft_multiplier = 2\n'
        + '[server.server_join]\nretry_join = ["a", "b:1"]\nretry_interval = "1m30s"\n'
        + '[log_levels]\nraft = "debug"\n[ports]\nhttp = 0\n[limits]\nmessage_max = 1000000\n'
    ).config

    assert config.server.ballast_size_bytes == 1024 * 1024
    assert config.server.raft_multiplier == 2.0
    assert config.server.server_join.retry_join == ("a", "b:1")
    assert config.server.server_join.retry_interval_s == 90.0
    assert dict(config.log_levels) == {"raft": "debug"}
    assert config.ports.http == 0
    assert config.limits.message_max_bytes == 1_000_000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('regoin = "eu"', 'a.toml: unknown setting regoin = "eu" (did you mean region?)'),
        (
            "[server]\nbootstrap_expct = 3",
            "a.toml: unknown setting server.bootstrap_expct = 3 (did you mean server.bootstrap_expect?)",
        ),
        (
            "[ports]\nqqqq = 1",
            "a.toml: unknown setting ports.qqqq = 1 (known in section ports: http, rpc, serf)",
        ),
        (
            "[server.server_join]\nretry_intervall = '1s'",
            'a.toml: unknown setting server.server_join.retry_intervall = "1s"'
            " (did you mean server.server_join.retry_interval?)",
        ),
        (
            "[server]\nbootstrap_expect = '3'",
            'a.toml: server.bootstrap_expect = "3" is not a whole number'
            " (how many servers form the region when it starts for the first time)",
        ),
        (
            "[server]\nbootstrap_expect = true",
            "a.toml: server.bootstrap_expect = true is not a whole number"
            " (how many servers form the region when it starts for the first time)",
        ),
        ("region = 7", "a.toml: region = 7 is not a text (region this agent belongs to)"),
        ("server = 7", "a.toml: server = 7 is not a section (the server half)"),
        ("log_json = 1", "a.toml: log_json = 1 is not true or false (log JSON lines instead of text)"),
        (
            "shutdown_grace = 5",
            'a.toml: shutdown_grace = 5 is not a duration such as "30s"'
            " (time for an orderly stop, handing leadership over)",
        ),
        (
            "shutdown_grace = '5 parsecs'",
            'a.toml: shutdown_grace = "5 parsecs" is not a duration such as "30s"'
            " (time for an orderly stop, handing leadership over)",
        ),
        (
            "log_rotate = 'big'",
            'a.toml: log_rotate = "big" is not a size such as "64MiB" (size at which the log file is rotated)',
        ),
        (
            "[server.server_join]\nretry_join = 'a'",
            'a.toml: server.server_join.retry_join = "a" is not a list of texts'
            " (servers of the region, host or host:port of their server or gossip port)",
        ),
        (
            "log_levels = { raft = 1 }",
            'a.toml: log_levels = {...} is not a table of texts (levels of single areas, such as raft = "debug")',
        ),
        (
            "log_level = 'inof'",
            'a.toml: log_level = "inof" is none of trace, debug, info, warn, error, off (did you mean info?)',
        ),
        ("[ports]\nhttp = 70000", "a.toml: ports.http = 70000 is too large (at most 65535)"),
        ("[ports]\nhttp = -1", "a.toml: ports.http = -1 is too small (at least 0)"),
        (
            "name = \n",
            "a.toml: not valid TOML: Invalid value (at line 1, column 8) (configuration files are written in TOML)",
        ),
    ],
)
def test_a_wrong_or_unknown_setting_is_refused_by_name(in_tmp: Path, text: str, message: str) -> None:
    assert refusal(text) == message


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            GOOD.replace("eu-1", "eu 1"),
            'a.toml: name = "eu 1" is not a name (letters, digits, - and _, at most 63, the first a letter or digit)',
        ),
        (
            'data_dir = "/x"\n[client]\nenabled = true',
            "a.toml: this client would wait for ever: it knows no server"
            ' (name some with client.servers = ["10.0.0.1", "10.0.0.2"])',
        ),
        (
            GOOD + "[client]\nenabled = true\nmin_dynamic_port = 9\nmax_dynamic_port = 8",
            "a.toml: client.min_dynamic_port = 9 is above max_dynamic_port = 8 (the first port comes before the last)",
        ),
        (
            GOOD + "[client]\nenabled = true\n[client.users]\ndynamic_user_min = 9\ndynamic_user_max = 8",
            "a.toml: client.users.dynamic_user_min = 9 is above dynamic_user_max = 8"
            " (the lowest number comes before the highest)",
        ),
        (
            GOOD + '[client]\nenabled = true\n[client.host_volume.certs]\npath = "etc/certs"',
            'a.toml: client.host_volume.certs.path = "etc/certs" is not an absolute path'
            " (say where on this host the volume is)",
        ),
        (
            GOOD + '[client]\nenabled = true\n[client.host_volume.certs]\npaht = "/etc/certs"',
            'a.toml: unknown setting client.host_volume.certs.paht = "/etc/certs"'
            " (did you mean client.host_volume.certs.path?)",
        ),
        (
            GOOD + '[client]\nenabled = true\nhost_volume = { certs = "/etc" }',
            "a.toml: client.host_volume = {...} is not a table of sections (directories of the host, by name)",
        ),
        (
            GOOD + '[client]\nenabled = true\n[client.host_network.out]\ncidr = "10.0.0/8"',
            'a.toml: client.host_network.out.cidr = "10.0.0/8" is no range of addresses (write it like "10.0.0.0/8")',
        ),
        (
            GOOD + '[client]\nenabled = true\n[client.reserved]\nreserved_ports = "22,90000"',
            "a.toml: client.reserved.reserved_ports = \"22,90000\": '90000' is no number or range up to 65535"
            ' (such as "1-3,7")',
        ),
        (
            GOOD + '[client]\nenabled = true\nnode_pool = "all"',
            'a.toml: client.node_pool = "all" is no pool that a node can be in'
            " (letters, digits, - and _; `default` always exists)",
        ),
        (
            GOOD + "[client]\nenabled = true\n[client.plugin]\nraw_exec = true",
            "a.toml: client.plugin = {...} is not a table of tables"
            " (settings of single drivers: [client.plugin.raw_exec] enabled = true)",
        ),
        (
            'data_dir = "/x"',
            "this agent would be neither server nor client"
            " (set server.enabled or client.enabled = true, or start with -server, -client or -dev)",
        ),
        (
            'data_dir = "/x"\n[server]\nenabled = true',
            "this server would wait for ever: it is told neither how many servers form the region nor whom to join"
            " (set server.bootstrap_expect = 1 for a lone server, or 3 together with server.server_join.retry_join)",
        ),
        (
            "[server]\nenabled = true\nbootstrap_expect = 1",
            'data_dir is not set (say where to keep data with data_dir = "/var/lib/fedsched", or try -dev)',
        ),
        (
            GOOD + '[log_levels]\nraft = "debgu"',
            'a.toml: log_levels.raft = "debgu" is none of trace, debug, info, warn, error, off (did you mean debug?)',
        ),
        (
            GOOD + "[ports]\nhttp = 5000\nrpc = 5000",
            "a.toml: ports.rpc = 5000 is the same as ports.http"
            " (each service needs a port of its own; 0 lets the system choose)",
        ),
        (
            GOOD + '[advertise]\nrpc = "0.0.0.0:1"',
            'a.toml: advertise.rpc = "0.0.0.0:1" cannot be dialled'
            " (name an address of this machine that the others can reach)",
        ),
        (
            GOOD + '[advertise]\nrpc = "a:b:c"',
            'a.toml: advertise.rpc = "a:b:c" is no address (write it as "host" or "host:port")',
        ),
        (
            GOOD + '[server.server_join]\nretry_join = ["a:99999"]',
            'a.toml: server.server_join.retry_join = "a:99999" is no address (write it as "host" or "host:port")',
        ),
        (
            'bind_addr = "0.0.0.0"' + GOOD,
            'a.toml: bind_addr = "0.0.0.0" would offer http without encryption to other machines'
            " (set tls.ca_file, tls.cert_file and tls.key_file, or stay on 127.0.0.1)",
        ),
        (
            GOOD + '[addresses]\nrpc = "10.0.0.1"',
            'a.toml: addresses.rpc = "10.0.0.1" would offer rpc without encryption to other machines'
            " (set tls.ca_file, tls.cert_file and tls.key_file, or stay on 127.0.0.1)",
        ),
        (
            GOOD + '[tls]\nca_file = "ca.pem"',
            "a.toml: tls.ca_file set, but not tls.cert_file and tls.key_file (TLS needs all three files)",
        ),
        (
            GOOD + '[tls]\nca_file = "a"\ncert_file = "b"\nkey_file = "c"',
            'a.toml: tls.ca_file = "a" cannot be read (does it exist, and may this user read it?)',
        ),
    ],
)
def test_settings_that_do_not_go_together_are_refused(in_tmp: Path, text: str, message: str) -> None:
    assert refusal(text) == message


def test_encryption_allows_other_addresses_and_loose_keys_are_warned_of(in_tmp: Path) -> None:
    for name in ("ca.pem", "cert.pem", "key.pem"):
        Path(name).write_text("")
    Path("key.pem").chmod(0o644)

    found = loaded(
        'bind_addr = "0.0.0.0"'
        + GOOD
        + '[tls]\nca_file = "ca.pem"\ncert_file = "cert.pem"\nkey_file = "key.pem"\nverify_server_hostname = false'
    )

    assert found.config.has_tls
    assert found.warnings == (
        'tls.key_file = "key.pem" can be read by other users; chmod 600 it',
        "tls.verify_server_hostname = false: any certificate of the authority can act as a server",
    )


def test_an_even_number_of_servers_is_warned_of(in_tmp: Path) -> None:
    found = loaded(GOOD.replace("bootstrap_expect = 1", "bootstrap_expect = 4"))

    assert found.warnings == (
        "server.bootstrap_expect = 4 is even: 4 servers survive no more failures than 3; use 3 or 5",
        "server.bootstrap_expect = 4, but server.server_join.retry_join is empty:"
        " this server waits until another one joins it",
    )


def test_later_files_win_and_directories_are_read_by_name(in_tmp: Path) -> None:
    Path("conf").mkdir()
    Path("conf/20-late.toml").write_text('region = "late"\n[ports]\nrpc = 2')
    Path("conf/10-early.toml").write_text('region = "early"\ndatacenter = "x"\n[ports]\nhttp = 1')
    Path("conf/ignored.txt").write_text("not TOML at all")
    Path("base.toml").write_text(GOOD)

    found = load_config(paths=["base.toml", "conf"])

    assert (found.config.region, found.config.datacenter) == ("late", "x")
    assert (found.config.ports.http, found.config.ports.rpc) == (1, 2)
    assert found.sources["region"] == "conf/20-late.toml"
    assert found.sources["ports.http"] == "conf/10-early.toml"


def test_environment_wins_over_files_and_flags_win_over_both(in_tmp: Path) -> None:
    found = loaded(
        environ={
            "FEDSCHED_REGION": "from-env",
            "FEDSCHED_DATACENTER": "from-env",
            "FEDSCHED_SERVER_SERVER_JOIN_RETRY_JOIN": "a, b:1",
            "FEDSCHED_LOG_LEVELS": "raft=debug,rpc=warn",
            "FEDSCHED_LOG_JSON": "1",
            "FEDSCHED_SERVER_RAFT_MULTIPLIER": "1.5",
            "FEDSCHED_CLIENT_CERT": "belongs to commands",
            "FEDSCHED_TEST_SEED": "1",
            "HOME": "/",
        },
        flags={
            "region": ["from-flag"],
            "retry-join": ["x", "y"],
            "set": ["server.raft_trailing_logs=7", "shutdown_grace=2s"],
        },
    )

    config = found.config
    assert (config.region, config.datacenter) == ("from-flag", "from-env")
    assert config.server.server_join.retry_join == ("x", "y")
    assert dict(config.log_levels) == {"raft": "debug", "rpc": "warn"}
    assert config.log_json is True
    assert config.server.raft_multiplier == 1.5
    assert (config.server.raft_trailing_logs, config.shutdown_grace_s) == (7, 2.0)
    assert found.sources["region"] == "-region"
    assert found.sources["server.raft_trailing_logs"] == "-set server.raft_trailing_logs"


@pytest.mark.parametrize(
    ("environ", "flags", "message"),
    [
        (
            {"FEDSCHED_SERVER_BOOTSTRAP_EXPCT": "3"},
            {},
            "environment: unknown setting FEDSCHED_SERVER_BOOTSTRAP_EXPCT"
            " (did you mean FEDSCHED_SERVER_BOOTSTRAP_EXPECT?)",
        ),
        (
            {"FEDSCHED_SERVER_BOOTSTRAP_EXPECT": "three"},
            {},
            'environment FEDSCHED_SERVER_BOOTSTRAP_EXPECT: server.bootstrap_expect = "three" is not a whole number'
            " (how many servers form the region when it starts for the first time)",
        ),
        (
            {"FEDSCHED_LOG_LEVELS": "raft"},
            {},
            'environment FEDSCHED_LOG_LEVELS: log_levels = "raft" is not a table of texts'
            ' (levels of single areas, such as raft = "debug")',
        ),
        (
            {},
            {"http-port": ["x"]},
            '-http-port: ports.http = "x" is not a whole number (HTTP API and websocket, on every agent)',
        ),
        ({}, {"set": ["regio=x"]}, "-set: unknown setting regio (did you mean region?)"),
        ({}, {"set": ["%%%%=x"]}, "-set: unknown setting %%%% (docs/reference/config.md lists them all)"),
        ({}, {"set": ["region"]}, '-set "region" has no value (write it as -set server.raft_multiplier=2)'),
    ],
)
def test_wrong_variables_and_flags_are_refused_by_name(
    in_tmp: Path, environ: dict[str, str], flags: dict[str, list[str]], message: str
) -> None:
    assert refusal(GOOD, environ=environ, flags=flags) == message  # type: ignore[arg-type]


def test_dev_needs_nothing_and_everything_may_override_it(in_tmp: Path) -> None:
    plain = load_config(is_dev=True)
    renamed = load_config(is_dev=True, flags={"node": ["mine"]})

    assert plain.config.server.enabled
    assert plain.config.server.bootstrap_expect == 1
    assert (plain.config.name, plain.config.data_dir, plain.warnings) == ("dev", "", ())
    assert renamed.config.name == "mine"


def test_the_name_defaults_to_the_hosts_and_the_data_directory_becomes_absolute(
    in_tmp: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "host-7.example.org")

    config = loaded(GOOD.replace('name = "eu-1"\n', "").replace("/var/lib/fedsched", "data")).config

    assert config.name == "host-7"
    assert config.data_dir == str(in_tmp / "data")


def test_files_that_cannot_be_read_are_named(in_tmp: Path) -> None:
    Path("huge.toml").write_text("#" * (1024 * 1024 + 1))
    Path("bytes.toml").write_bytes(b"\xff\xfe")

    for path, message in (
        ("none.toml", "none.toml: cannot be read: No such file or directory (-config takes a TOML file or a directory"),
        ("huge.toml", "huge.toml: larger than 1048576 bytes (is this a configuration file?)"),
        ("bytes.toml", "bytes.toml: not valid TOML: 'utf-8' codec can't decode"),
    ):
        with pytest.raises(BadSetting) as caught:
            load_config(paths=[path])
        assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        *((host, True) for host in ("127.0.0.1", "127.9.9.9", "::1", "[::1]", "localhost")),
        *((host, False) for host in ("0.0.0.0", "10.0.0.1", "::", "example.org")),
    ],
)
def test_loopback_is_recognised(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("a", ("a", 9)),
        ("a:1", ("a", 1)),
        ("::1", ("::1", 9)),
        ("[::1]", ("::1", 9)),
        ("[::1]:7", ("::1", 7)),
    ],
)
def test_addresses_are_split(address: str, expected: tuple[str, int]) -> None:
    assert split_host_port(address, 9) == expected


@pytest.mark.parametrize("address", ["", ":1", "a:b", "a:70000", "[::1", "[::1]x", "a:b:c"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ValueError):
        split_host_port(address, 9)


def test_no_two_settings_share_a_variable_or_a_flag() -> None:
    settings = all_settings(AgentConfig)

    assert len({variable_of(path) for path in settings}) == len(settings)
    assert len(flags_of_settings()) == sum(1 for one in settings.values() if one.flag)


def test_sections_have_the_same_name_inside_and_in_the_file() -> None:
    def check(section: type) -> None:
        for one in settings_of(section).values():
            assert one.doc
            if one.kind is Kind.SECTION:
                assert one.section is not None
                assert one.attr == one.key
                assert one.section.__doc__
                check(one.section)

    check(AgentConfig)


def test_the_reference_page_is_fresh() -> None:
    page = Path(__file__).parents[2] / "docs/reference/config.md"

    assert page.read_text() == reference_page(), "run `python -m fedsched.cli.docs`"

"""A region whose every port speaks TLS and asks for a certificate."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from fedsched.model.errors import FedschedError
from fedsched.rpc.method import Empty
from fedsched.rpc.methods.raft import RAFT_STATUS
from fedsched.wire.tls import TlsOptions
from tests.e2e.calls import CERTS, OUR_TLS, Caller, connect, look
from tests.e2e.hostile import pour_garbage
from tests.e2e.region import HOST, running_region
from tests.e2e.view import wait_leader, wait_level

pytestmark = pytest.mark.processes

TLS = f"""tls.ca_file = "{CERTS / "ca.pem"}"
tls.cert_file = "{CERTS / "server.pem"}"
tls.key_file = "{CERTS / "server.key"}\""""

STRANGERS = {
    "nobody": TlsOptions(ca_cert=OUR_TLS.ca_cert),
    "a stranger": TlsOptions(
        ca_cert=OUR_TLS.ca_cert, client_cert=str(CERTS / "stranger.pem"), client_key=str(CERTS / "stranger.key")
    ),
}


def test_a_region_under_tls_works_for_those_it_knows_and_for_nobody_else(tmp_path: Path) -> None:
    with running_region(tmp_path, top=TLS) as region:
        leader = wait_leader(region, look)
        for name, server in region.servers.items():
            with Caller(server) as caller:
                caller.register(f"job-{name}", "secret")
                assert caller.get(f"job-{name}").value == "secret"

        address = region.servers[leader].address
        for tls in STRANGERS.values():
            with pytest.raises(FedschedError):
                _ask(address, tls)
        with pytest.raises(FedschedError):
            _ask(address.replace("https", "http"), OUR_TLS)
        for port in (region.servers[leader].http_port, region.servers[leader].rpc_port):
            pour_garbage(HOST, port, Random(11))

        assert wait_leader(region, look) == leader
        wait_level(region, look, within_s=30)
        assert set(region.stop().values()) == {0}
        for name, text in region.logs().items():
            assert "Traceback" not in text, region.servers[name].tail()


def _ask(address: str, tls: TlsOptions) -> None:
    with connect(address, 5, tls) as caller:
        caller.ask(RAFT_STATUS, Empty(), timeout_s=5)

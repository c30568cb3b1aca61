from __future__ import annotations

import ssl

import pytest

from fedsched.rpc.context import CallMeta
from fedsched.rpc.methods.job import JOB_LIST
from fedsched.rpc.methods.server import SERVER_HELLO, SERVER_JOIN
from fedsched.rpc.methods.status import STATUS_CLOCK
from fedsched.rpc.server_side import CallContext
from fedsched.server.identity import FAR_SERVER, SERVER, STRANGER, Identity, NotAllowed, check_allowed, identify
from fedsched.server.tls import TlsContexts


def contexts(*, checks_names: bool = True) -> TlsContexts:
    dialling = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    dialling.check_hostname = checks_names
    return TlsContexts(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), dialling, "server.eu.fedsched")


def certificate(*names: str) -> dict[str, object]:
    return {"subjectAltName": tuple(("DNS", name) for name in names)}


def a_call(method: object, identity: Identity | None) -> CallContext:
    return CallContext(method, CallMeta(), peer="somebody", identity=identity, items=None)  # type: ignore[arg-type]


def test_a_server_is_known_by_the_name_in_its_certificate() -> None:
    assert identify(certificate("localhost", "server.eu.fedsched"), contexts()) == SERVER
    assert identify(certificate("client.eu.fedsched"), contexts()) == STRANGER
    assert identify(certificate("server.us.fedsched"), contexts()) == FAR_SERVER
    assert identify(certificate("server.us.eu.fedsched"), contexts()) == STRANGER
    assert identify(None, contexts()) == STRANGER


def test_without_tls_or_without_names_whoever_reaches_the_server_port_is_a_server() -> None:
    assert identify(None, None) == SERVER
    assert identify(certificate("client.eu.fedsched"), contexts(checks_names=False)) == SERVER


@pytest.mark.parametrize("method", [SERVER_HELLO, SERVER_JOIN])
@pytest.mark.parametrize("identity", [STRANGER, None])
def test_what_servers_ask_each_other_is_refused_to_anybody_else(method: object, identity: Identity | None) -> None:
    with pytest.raises(NotAllowed, match="for servers only"):
        check_allowed(a_call(method, identity))


def test_servers_may_ask_everything_and_everybody_the_rest() -> None:
    check_allowed(a_call(SERVER_JOIN, SERVER))
    check_allowed(a_call(JOB_LIST, STRANGER))
    check_allowed(a_call(JOB_LIST, FAR_SERVER))


def test_what_all_regions_do_together_is_for_servers_of_any_region_and_nothing_else_is() -> None:
    check_allowed(a_call(STATUS_CLOCK, SERVER))
    check_allowed(a_call(STATUS_CLOCK, FAR_SERVER))
    for method, identity in ((STATUS_CLOCK, STRANGER), (STATUS_CLOCK, None), (SERVER_JOIN, FAR_SERVER)):
        with pytest.raises(NotAllowed, match="for servers only"):
            check_allowed(a_call(method, identity))

    assert a_call(JOB_LIST, None).method is JOB_LIST

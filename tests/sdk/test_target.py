from __future__ import annotations

import pytest

from fedsched.model.errors import BadRequest
from fedsched.sdk.target import Target, target_of
from fedsched.wire.address import parse_address


def test_flag_beats_our_variable_beats_nomads_beats_default() -> None:
    environ = {
        "FEDSCHED_ADDR": "http://ours:1",
        "NOMAD_ADDR": "http://theirs:2",
        "NOMAD_REGION": "r2",
        "FEDSCHED_NAMESPACE": "n1",
        "NOMAD_NAMESPACE": "n2",
        "NOMAD_TOKEN": "secret",
        "NOMAD_SKIP_VERIFY": "true",
        "NOMAD_CACERT": "ca.pem",
    }

    from_environment = target_of("", environ)
    assert str(from_environment.address) == "http://ours:1"
    assert (from_environment.region, from_environment.namespace, from_environment.token) == ("r2", "n1", "secret")
    assert from_environment.tls_skip_verify
    assert from_environment.ca_cert == "ca.pem"

    given = target_of("https://flag:3", environ, region="r0", namespace=None)
    assert (str(given.address), given.region, given.namespace) == ("https://flag:3", "r0", "n1")


def test_nothing_said_means_the_local_agent() -> None:
    assert target_of() == Target(parse_address("http://127.0.0.1:4646"))


def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(BadRequest, match="unknown scheme 'ftp'"):
        target_of("ftp://x")


def test_several_agents_may_be_named() -> None:
    target = target_of("http://a:1, b:2,,https://c:3")

    assert str(target.address) == "http://a:1"
    assert [str(one) for one in target.others] == ["http://b:2", "https://c:3"]

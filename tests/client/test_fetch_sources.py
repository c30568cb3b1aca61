"""Sources, checksums and addresses, as they are judged before anything is fetched."""

from __future__ import annotations

import pytest

from fedsched.client.fetch.http_source import is_refused
from fedsched.client.fetch.limits import FetchFailed
from fedsched.client.fetch.sources import checksum_from, read_checksum, read_source, shown


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("169.254.169.254", True),
        ("169.254.1.1", True),
        ("fe80::1%eth0", True),
        ("fd00:ec2::254", True),
        ("100.100.100.200", True),
        ("224.0.0.1", True),
        ("0.0.0.0", True),
        ("::", True),
        ("2002:7f00:1::", True),
        ("10.0.0.1", False),
        ("93.184.216.34", False),
        ("2606:2800:220:1::1", False),
    ],
)
def test_which_addresses_are_nobody_s_business(address: str, expected: bool) -> None:
    assert is_refused(address, ()) is expected
    assert not is_refused(address, ("0.0.0.0/0", "::/0"))


def test_sources_are_taken_apart() -> None:
    source = read_source("https://u:p@host:8443/a/b.zip//sub/dir?archive=tar&x=1&checksum=md5:00", {"archive": "zip"})

    assert (source.scheme, source.location, source.part) == ("https", "https://u:p@host:8443/a/b.zip?x=1", "sub/dir")
    assert source.options == {"archive": "zip", "checksum": "md5:00"}
    assert source.file_name == "b.zip"
    assert source.shown == "https://host:8443/a/b.zip"
    assert read_source("file://local/x.tar?archive=false", {}).location == "local/x.tar"
    assert read_source("https://host/b%20c", {}).file_name == "b c"
    assert shown("http://[::1") == "(a source that is no URL)"
    with pytest.raises(FetchFailed, match="file name"):
        read_source("https://host/x", {"filename": "../x"})
    with pytest.raises(FetchFailed, match="file name"):
        read_source("https://host/..%2F..", {})


def test_checksums_are_read_in_all_their_forms() -> None:
    assert read_checksum("SHA256:x".lower().replace("x", "AB" * 32)) == ("sha256", "ab" * 32)
    assert read_checksum("00" * 16) == ("md5", "00" * 16)
    assert read_checksum("file:https://x/SUMS") == ("file", "https://x/SUMS")
    for wrong in ("", "sha256:00", "crc:00", "file:", "md5:" + "g" * 32):
        with pytest.raises(FetchFailed):
            read_checksum(wrong)
    assert checksum_from("ab" * 16 + "\n", "any") == ("md5", "ab" * 16)
    with pytest.raises(FetchFailed):
        checksum_from("ab" * 16 + "\n" + "cd" * 16 + "\n", "any")

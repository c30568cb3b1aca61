from __future__ import annotations

import io
import os
import posixpath
import random
import stat
import tarfile
import warnings
import zipfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedsched.client.fetch.archive import KINDS, archive_kind, unpack
from fedsched.client.fetch.limits import BadArchive, FetchFailed, FetchLimits
from fedsched.client.fetch.members import Member, MemberKind
from fedsched.client.fetch.tree import TreeRules, safe_parts, write_tree
from tests.client.archives import Entry, packed, pax, tar, zipped

LIMITS = FetchLimits(entries=50, extracted_bytes=50 << 20)
S_IFLNK, S_IFREG, S_IFCHR = stat.S_IFLNK, stat.S_IFREG, stat.S_IFCHR


@pytest.fixture
def target(tmp_path: Path) -> Path:
    (tmp_path / "target").mkdir()
    (tmp_path / "canary").write_text("untouched")
    return tmp_path / "target"


def unpack_bytes(data: bytes, kind: str, target: Path, limits: FetchLimits = LIMITS, name: str = "single") -> None:
    archive = target.parent / "archive"
    archive.write_bytes(data)
    root = os.open(target, os.O_RDONLY)
    try:
        with archive.open("rb") as file:
            unpack(file, KINDS[kind], name, root, limits)
    finally:
        os.close(root)
        archive.unlink()
        assert sorted(entry.name for entry in target.parent.iterdir()) == ["canary", "target"]
        assert (target.parent / "canary").read_text() == "untouched"


def found(target: Path) -> dict[str, str]:
    """What is in a tree: files by content, directories and links by what they are."""
    table = {}
    for path in sorted(target.rglob("*")):
        name = str(path.relative_to(target))
        if path.is_symlink():
            table[name] = f"-> {os.readlink(path)}"
        else:
            table[name] = "/" if path.is_dir() else path.read_text()
    return table


FINE = [
    Entry("./", kind=b"5", mode=0o755),
    Entry("bin/", kind=b"5", mode=0o755),
    Entry("bin/run", b"#!/bin/sh\n", mode=0o4755),
    Entry("bin/link", kind=b"2", target="run"),
    Entry("lib/deep/file", b"x" * 1000, mode=0o666),
    Entry("lib/up", kind=b"2", target="../bin/link"),
]


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "tgz", "tar.bz2", "tbz2", "tar.xz", "txz"])
def test_a_good_archive_is_unpacked_with_safe_modes(target: Path, kind: str) -> None:
    unpack_bytes(packed(tar(FINE), KINDS[kind].compression), kind, target)

    assert found(target) == {
        "bin": "/",
        "bin/run": "#!/bin/sh\n",
        "bin/link": "-> run",
        "lib": "/",
        "lib/deep": "/",
        "lib/deep/file": "x" * 1000,
        "lib/up": "-> ../bin/link",
    }
    assert stat.S_IMODE((target / "bin/run").stat().st_mode) == 0o755
    assert stat.S_IMODE((target / "lib/deep/file").stat().st_mode) == 0o644


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_what_other_tools_write_is_read(target: Path, tmp_path: Path, form: int) -> None:
    names = {"a": "1", "ü/漢字": "2", "/".join(["long" * 12] * 3): "3"}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=form) as archive:
        for name, content in names.items():
            info = tarfile.TarInfo(name)
            info.size = 1
            archive.addfile(info, io.BytesIO(content.encode()))

    unpack_bytes(out.getvalue(), "tar", target)

    assert {name: text for name, text in found(target).items() if text != "/"} == names


def test_a_zip_is_unpacked_with_its_links(target: Path) -> None:
    data = zipped([("a/b", b"hello", S_IFREG | 0o6755), ("a/link", b"b", S_IFLNK | 0o777), ("d/", b"", 0o40755)])

    unpack_bytes(data, "zip", target)

    assert found(target) == {"a": "/", "a/b": "hello", "a/link": "-> b", "d": "/"}
    assert stat.S_IMODE((target / "a/b").stat().st_mode) == 0o755


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
def test_a_single_compressed_file_is_unpacked_also_in_several_streams(target: Path, kind: str) -> None:
    unpack_bytes(packed(b"hello ", kind) + packed(b"world", kind), kind, target, name="greeting")

    assert found(target) == {"greeting": "hello world"}


HOSTILE = {
    "absolute": [Entry("/etc/passwd", b"x")],
    "climbing": [Entry("../canary", b"x")],
    "climbing inside": [Entry("a/../../canary", b"x")],
    "climbing back in": [Entry("a/b/../../c", b"x")],
    "dots only": [Entry("..", b"x")],
    "nameless": [Entry(".", b"x")],
    "nothing at all": [Entry("", b"x")],
    "through a link out": [Entry("l", kind=b"2", target=".."), Entry("l/canary", b"x")],
    "through a link in": [Entry("d/", kind=b"5"), Entry("l", kind=b"2", target="d"), Entry("l/x", b"x")],
    "link out": [Entry("l", kind=b"2", target="../canary")],
    "link out absolute": [Entry("l", kind=b"2", target="/etc/passwd")],
    "link out by chain": [
        Entry("a/", kind=b"5"),
        Entry("a/l", kind=b"2", target=".."),
        Entry("m", kind=b"2", target="a/l/../canary"),
    ],
    "link to nowhere": [Entry("l", kind=b"2", target="gone")],
    "link to itself": [Entry("l", kind=b"2", target="l")],
    "empty link": [Entry("l", kind=b"2", target="")],
    "link over a directory": [Entry("d/x", b""), Entry("d", kind=b"2", target="x")],
    "directory over a link": [Entry("x", b""), Entry("d", kind=b"2", target="x"), Entry("d/", kind=b"5")],
    "directory over a file": [Entry("d", b""), Entry("d/x", b"")],
    "file over a directory": [Entry("d/x", b""), Entry("d", b"")],
    "hard link out": [Entry("l", kind=b"1", target="../canary")],
    "hard link absolute": [Entry("l", kind=b"1", target="/etc/passwd")],
    "hard link to an earlier file": [Entry("x", b""), Entry("l", kind=b"1", target="x")],
    "hard link to a later file": [Entry("l", kind=b"1", target="x"), Entry("x", b"")],
    "hard link to a link": [Entry("s", kind=b"2", target="../canary"), Entry("l", kind=b"1", target="s")],
    "character device": [Entry("x", kind=b"3")],
    "block device": [Entry("x", kind=b"4")],
    "fifo": [Entry("x", kind=b"6")],
    "sparse": [Entry("x", kind=b"S")],
    "pax sparse": [pax(GNU__sparse__major="1"), Entry("x", b"")],
    "unknown kind": [Entry("x", kind=b"Z")],
    "pax name out": [pax(path="../canary"), Entry("x", b"x")],
    "pax link out": [pax(linkpath="../canary"), Entry("x", kind=b"2", target="x")],
    "gnu long name out": [Entry("@", b"../canary\0", kind=b"L"), Entry("x", b"x")],
    "prefix out": [Entry("canary", b"x", prefix=b"..")],
    "global name": [Entry("g", b"12 path=a/b\n", kind=b"g"), Entry("x", b"")],
    "pax of a wrong length": [Entry("x", b"99 path=a\n", kind=b"x"), Entry("x", b"")],
    "pax without a length": [Entry("x", b"path=a\n", kind=b"x"), Entry("x", b"")],
    "pax without a value": [Entry("x", b"7 path\n", kind=b"x"), Entry("x", b"")],
    "pax of an impossible size": [pax(size="9" * 30), Entry("x", b"")],
    "pax of a negative size": [pax(size="-1"), Entry("x", b"")],
    "huge extension": [Entry("x", b"x" * 200_000, kind=b"L"), Entry("x", b"")],
    "size beyond the end": [Entry("x", b"abc", size=100_000)],
    "impossible size": [Entry("x", b"abc", size=1 << 70)],
    "too deep": [Entry("@", b"d/" * 101 + b"x\0", kind=b"L"), Entry("x", b"")],
    "too long": [Entry("@", b"n" * 300 + b"\0", kind=b"L"), Entry("x", b"")],
    "too many": [Entry(f"f{number}", b"") for number in range(51)],
    "too many headers": [Entry("@", b"x\0", kind=b"L") for _ in range(60)],
}


@pytest.mark.parametrize("case", sorted(HOSTILE))
def test_a_hostile_tar_is_refused_and_nothing_is_outside(target: Path, case: str) -> None:
    with pytest.raises(BadArchive):
        unpack_bytes(tar(HOSTILE[case]), "tar", target)


HOSTILE_ZIPS = {
    "absolute": [("/etc/passwd", b"x", S_IFREG | 0o644)],
    "climbing": [("../canary", b"x", S_IFREG | 0o644)],
    "link out": [("l", b"../canary", S_IFLNK | 0o777)],
    "link absolute": [("l", b"/etc/passwd", S_IFLNK | 0o777)],
    "endless link": [("l", b"x" * 5000, S_IFLNK | 0o777)],
    "through a link": [("l", b"..", S_IFLNK | 0o777), ("l/canary", b"x", S_IFREG | 0o644)],
    "device": [("x", b"", S_IFCHR | 0o666)],
    "too many": [(f"f{number}", b"", S_IFREG | 0o644) for number in range(51)],
}


@pytest.mark.parametrize("case", sorted(HOSTILE_ZIPS))
def test_a_hostile_zip_is_refused_and_nothing_is_outside(target: Path, case: str) -> None:
    with pytest.raises(BadArchive):
        unpack_bytes(zipped(HOSTILE_ZIPS[case]), "zip", target)


def test_a_backslash_is_a_letter_like_any_other(target: Path) -> None:
    unpack_bytes(zipped([("..\\canary", b"x", S_IFREG | 0o644)]), "zip", target)

    assert found(target) == {"..\\canary": "x"}


def test_other_compressions_and_encryption_inside_a_zip_are_refused(target: Path) -> None:
    with pytest.raises(BadArchive, match="deflate"):
        unpack_bytes(zipped([("x", b"y", 0)], compression=zipfile.ZIP_BZIP2), "zip", target)
    encrypted = bytearray(zipped([("x", b"y", 0)]))
    for mark, at in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        encrypted[encrypted.index(mark) + at] |= 1
    with pytest.raises(BadArchive, match="encrypted"):
        unpack_bytes(bytes(encrypted), "zip", target)


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz"])
def test_a_bomb_of_zeroes_is_noticed_by_its_ratio(target: Path, kind: str) -> None:
    bomb = packed(bytes(40 << 20), kind)
    assert len(bomb) < 100_000

    with pytest.raises(BadArchive, match="times its size"):
        unpack_bytes(bomb, kind, target)

    assert sum(path.stat().st_size for path in target.iterdir()) < 25 << 20


def test_a_zip_bomb_is_noticed_as_well(target: Path) -> None:
    bomb = zipped([(f"f{number}", bytes(4 << 20), S_IFREG | 0o644) for number in range(10)])

    with pytest.raises(BadArchive, match="times its size"):
        unpack_bytes(bomb, "zip", target)


def test_what_unpacks_beyond_the_limit_is_cut_off_while_it_is_written(target: Path) -> None:
    limits = FetchLimits(extracted_bytes=100_000)

    with pytest.raises(BadArchive, match="decompression_size_limit"):
        unpack_bytes(packed(os.urandom(300_000), "gz"), "gz", target, limits)
    with pytest.raises(BadArchive, match="decompression_size_limit"):
        unpack_bytes(tar([Entry("x", os.urandom(300_000))]), "tar", target, limits)

    assert all(path.stat().st_size <= 100_000 for path in target.iterdir())


def test_limits_are_kept_to_the_byte_and_the_entry(target: Path) -> None:
    unpack_bytes(packed(b"x" * 1000, "gz"), "gz", target, FetchLimits(extracted_bytes=1000))
    unpack_bytes(tar([Entry(f"f{number}") for number in range(50)]), "tar", target)

    with pytest.raises(BadArchive):
        unpack_bytes(packed(b"x" * 1001, "gz"), "gz", target, FetchLimits(extracted_bytes=1000), name="more")


def test_an_xz_that_wants_too_much_memory_is_refused(target: Path) -> None:
    import lzma

    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 512 << 20}]
    compressor = lzma.LZMACompressor(format=lzma.FORMAT_XZ, filters=filters)
    data = compressor.compress(b"x") + compressor.flush()

    with pytest.raises(BadArchive, match="xz"):
        unpack_bytes(data, "xz", target)


@pytest.mark.parametrize("kind", ["tar", "tar.gz", "tar.bz2", "tar.xz", "zip", "gz"])
def test_what_is_no_archive_at_all_is_refused(target: Path, kind: str) -> None:
    with pytest.raises(BadArchive):
        unpack_bytes(b"<html>not found</html>" * 100, kind, target)


def an_archive(kind: str, content: bytes) -> bytes:
    if kind == "zip":
        return zipped([("a", content, 0), ("b", b"x", 0)])
    inner = tar([Entry("a", content), Entry("b", b"x")]) if KINDS[kind].container == "tar" else content
    return packed(inner, KINDS[kind].compression)


@pytest.mark.parametrize("content", [random.Random(7).randbytes(3000), b"", bytes(900)], ids=["noise", "empty", "even"])
@pytest.mark.parametrize("kind", ["tar.gz", "tar.bz2", "tar.xz", "zip", "gz", "bz2", "xz"])
def test_an_archive_cut_off_anywhere_is_refused(target: Path, kind: str, content: bytes) -> None:
    whole = an_archive(kind, content)
    unpack_bytes(whole, kind, target)

    for length in sorted({*range(1, len(whole), 97), *range(max(1, len(whole) - 60), len(whole))}):
        with pytest.raises(BadArchive):
            unpack_bytes(whole[:length], kind, target)


def test_what_is_behind_the_end_of_a_tar_counts_against_the_limit(target: Path) -> None:
    whole = tar([Entry("a", b"x")]) + random.Random(7).randbytes(50_000)

    unpack_bytes(packed(whole, "gz"), "tar.gz", target)
    with pytest.raises(BadArchive, match="decompression_size_limit"):
        unpack_bytes(packed(whole, "gz"), "tar.gz", target, FetchLimits(extracted_bytes=20_000))


def test_something_behind_the_end_of_a_compressed_file_is_refused_and_padding_is_not(target: Path) -> None:
    unpack_bytes(packed(b"x", "gz") + bytes(1000), "gz", target)
    with pytest.raises(BadArchive):
        unpack_bytes(packed(b"x", "gz") + b"something", "gz", target, name="y")


def test_of_two_entries_with_the_same_name_the_later_wins(target: Path) -> None:
    entries = [
        Entry("x", b"first"),
        Entry("l", kind=b"2", target="gone"),
        Entry("x", b"second"),
        Entry("l", b"a file after all"),
        Entry("./x", b"third"),
    ]

    unpack_bytes(tar(entries), "tar", target)

    assert found(target) == {"l": "a file after all", "x": "third"}


def test_names_in_other_cases_and_scripts_are_names_of_their_own(target: Path) -> None:
    names = ["README", "readme", "ReadMe", "e\u0301", "\u00e9", "\u202egnp.exe", "a b\tc", "-rf", "~", "$HOME"]

    unpack_bytes(tar([Entry(name, name.encode()) for name in names]), "tar", target)

    assert found(target) == {name: name for name in sorted(names)}


def test_names_that_are_no_text_are_kept_as_bytes(target: Path) -> None:
    unpack_bytes(tar([Entry(b"caf\xe9", b"x")]), "tar", target)

    assert os.listdir(os.fsencode(target)) == [b"caf\xe9"]


def test_a_header_with_a_wrong_checksum_is_refused(target: Path) -> None:
    data = bytearray(tar([Entry("x", b"abc")]))
    data[0] ^= 1

    with pytest.raises(BadArchive, match="checksum"):
        unpack_bytes(bytes(data), "tar", target)


def test_links_and_directories_have_no_data_whatever_they_say(target: Path) -> None:
    """A size on a link must not shift where the next header is looked for."""
    unpack_bytes(tar([Entry("x", b""), Entry("l", kind=b"2", target="x", size=512), Entry("y", b"y")]), "tar", target)

    assert found(target) == {"l": "-> x", "x": "", "y": "y"}


def test_our_own_archives_keep_owners_modes_and_links(target: Path) -> None:
    members = [
        Member("d", MemberKind.DIRECTORY, 0o777, owner=(1234, 1235)),
        Member("d/l", MemberKind.SYMLINK, target="/alloc/data/elsewhere"),
        Member("d/f", MemberKind.FILE, 0o6666, owner=(1234, 1235)),
    ]
    is_root = os.geteuid() == 0
    root = os.open(target, os.O_RDONLY)
    try:
        write_tree(root, members, TreeRules(keeps_owners=is_root, bits=0o777, checks_links=False))
    finally:
        os.close(root)

    assert stat.S_IMODE((target / "d").stat().st_mode) == 0o777
    assert stat.S_IMODE((target / "d/f").stat().st_mode) == 0o666
    assert os.readlink(target / "d/l") == "/alloc/data/elsewhere"
    if is_root:
        assert (target / "d/f").stat().st_uid == 1234


_PARTS = st.sampled_from(["a", "b", "..", ".", "", "A", "x y", "ü", "\0", "...", "a\\b", "\udcff", "\ud800", "n" * 300])
_NAMES = st.one_of(st.lists(_PARTS, max_size=5).map("/".join), st.text(max_size=20))


@given(_NAMES)
def test_a_name_is_taken_only_if_it_plainly_stays_inside(name: str) -> None:
    try:
        parts = safe_parts(name)
    except BadArchive:
        return
    assert not name.startswith("/")
    assert ".." not in name.split("/")
    joined = posixpath.normpath(posixpath.join("/root", name))
    assert joined == posixpath.join("/root", *parts)
    assert joined == "/root" or joined.startswith("/root/")


_MEMBER = st.builds(
    Entry,
    name=st.lists(st.sampled_from(["a", "b", "c", "..", "."]), min_size=1, max_size=3).map("/".join),
    data=st.just(b""),
    kind=st.sampled_from([b"0", b"1", b"2", b"2", b"5"]),
    target=st.lists(st.sampled_from(["a", "b", "c", "..", "/"]), max_size=4).map("/".join),
)


@given(st.lists(_MEMBER, max_size=6))
def test_whatever_members_come_in_whatever_order_nothing_leads_out(
    tmp_path_factory: pytest.TempPathFactory, entries: list[Entry]
) -> None:
    """The model of staying inside: every name resolves to something below the target, and nothing is beside it."""
    outside = tmp_path_factory.mktemp("world")
    target = outside / "target"
    target.mkdir()
    (outside / "canary").write_text("untouched")
    try:
        unpack_bytes(tar(entries), "tar", target)
    except BadArchive:
        pass
    else:
        for path in target.rglob("*"):
            assert path.resolve(strict=True).is_relative_to(target)
    assert sorted(entry.name for entry in outside.iterdir()) == ["canary", "target"]


@given(st.binary(max_size=2000), st.sampled_from(sorted(KINDS)))
def test_no_bytes_do_more_than_be_refused(tmp_path_factory: pytest.TempPathFactory, data: bytes, kind: str) -> None:
    outside = tmp_path_factory.mktemp("world")
    (outside / "target").mkdir()
    (outside / "canary").write_text("untouched")
    with suppress(BadArchive):
        unpack_bytes(data, kind, outside / "target")
    assert sorted(entry.name for entry in outside.iterdir()) == ["canary", "target"]
    assert (outside / "canary").read_text() == "untouched"


@given(st.integers(0, 10_000), st.integers(0, 255), st.sampled_from(["tar", "tar.gz", "zip"]))
def test_a_good_archive_with_one_byte_changed_stays_inside(
    tmp_path_factory: pytest.TempPathFactory, at: int, byte: int, kind: str
) -> None:
    outside = tmp_path_factory.mktemp("world")
    (outside / "target").mkdir()
    (outside / "canary").write_text("untouched")
    whole = zipped([("a/b", b"hello", S_IFREG | 0o644), ("l", b"a/b", S_IFLNK | 0o777)]) if kind == "zip" else tar(FINE)
    data = bytearray(packed(whole, KINDS[kind].compression))
    data[at % len(data)] = byte
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # zipfile warns of names that come twice
            unpack_bytes(bytes(data), kind, outside / "target")
    except BadArchive:
        pass


def test_the_kind_is_known_by_name_or_by_option() -> None:
    assert archive_kind("app.TAR.gz", "") == ("tar.gz", KINDS["tar.gz"])
    assert archive_kind("app.gz", "") == ("gz", KINDS["gz"])
    assert archive_kind("app", "") is None
    assert archive_kind("app.zip", "false") is None
    assert archive_kind("app", "zip") == ("zip", KINDS["zip"])
    assert archive_kind("app.zip", "true") == ("zip", KINDS["zip"])
    with pytest.raises(FetchFailed, match="rar2"):
        archive_kind("app", "rar2")
    with pytest.raises(FetchFailed, match="cannot be unpacked"):
        archive_kind("app.tar.zst", "")

"""Parts of templates on their own: environment files, the debounce, and where files are."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from fedsched.client.template.files import FILE_BYTES_MAX, FileRoot, read_known, read_text, write_rendered
from fedsched.client.template.watch_core import Act, TemplateRules, TemplateWatchCore
from fedsched.model.errors import BadRequest
from fedsched.model.task import ChangeScript
from fedsched.template.env_file import BadEnvFile, parse_env
from fedsched.template.errors import Wrong


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("", {}),
        ("A=1\nB = 2 \n", {"A": "1", "B": "2"}),
        ("# said\n\nexport A=x y # note\r\n", {"A": "x y"}),
        ('A=\'a # "b\\n\'\nB="c\\n\\"d" # note', {"A": 'a # "b\\n', "B": 'c\n"d'}),
        ("A=\nA=2\nB=a#b", {"A": "2", "B": "a#b"}),
        ("my.key-1=v", {"my.key-1": "v"}),
    ],
)
def test_lines_become_variables(text: str, values: dict[str, str]) -> None:
    assert parse_env(text) == values


@pytest.mark.parametrize("text", ["secret words", "=x", "1A=x", 'A="open', "A='x' y", "A\n"])
def test_a_line_that_is_none_is_told_by_its_place_and_never_quoted(text: str) -> None:
    with pytest.raises(BadEnvFile, match=r"^app\.env:2: ") as caught:
        parse_env(f"OK=1\n{text}", "app.env")

    assert "secret" not in str(caught.value)


def rules(mode: str = "restart", **fields: float | str | ChangeScript) -> TemplateRules:
    return TemplateRules(change_mode=mode, **fields)  # type: ignore[arg-type]


def test_a_template_is_rendered_when_its_data_has_been_quiet() -> None:
    core = TemplateWatchCore([rules(wait_min_s=5.0, wait_max_s=12.0)])
    assert core.wake_at() == math.inf
    core.touched([0], 0.0)
    core.touched([0], 4.0)
    assert (core.wake_at(), core.to_render(8.9)) == (9.0, [])
    core.touched([0], 8.0)
    assert core.wake_at() == 12.0  # at the latest so long after the first change
    assert core.to_render(12.0) == [0]
    assert core.to_render(99.0) == []


def test_a_limit_below_the_wait_is_no_shorter_than_it() -> None:
    core = TemplateWatchCore([rules(wait_min_s=5.0, wait_max_s=0.0)])
    core.touched([0], 0.0)
    assert core.wake_at() == 5.0


def test_the_strongest_wish_wins_after_part_of_the_longest_splay() -> None:
    script = ChangeScript(command="/bin/x")
    core = TemplateWatchCore(
        [
            rules("signal", signal="SIGHUP", splay_s=4.0),
            rules("script", script=script),
            rules("restart", splay_s=10.0),
            rules("noop", splay_s=99.0),
        ]
    )
    core.rendered(3, 0.0, 1.0)
    assert core.wake_at() == math.inf  # nothing has to be done
    core.settled()
    core.rendered(0, 0.0, 0.5)
    core.rendered(1, 1.0, 0.5)
    assert (core.wake_at(), core.act(1.9)) == (2.0, Act())
    assert core.act(2.0) == Act(signals=("SIGHUP",), scripts=(script,))
    assert not core.act(99.0)
    core.rendered(0, 100.0, 1.0)
    core.rendered(2, 101.0, 1.0)
    assert core.act(104.0) == Act(restart=True)
    core.rendered(2, 200.0, 0.0)
    core.settled()
    assert not core.act(300.0)


def a_root(directory: Path, **fields: bool) -> FileRoot:
    (directory / "a" / "main" / "local").mkdir(parents=True)
    return FileRoot(directory / "a", "main", **{"sees_own_root": False, **fields})


@pytest.mark.parametrize(
    ("path", "own", "relative"),
    [
        ("local/x", False, "main/local/x"),
        ("../alloc/x", False, "main/../alloc/x"),
        ("/etc/x", False, "main/etc/x"),
        ("/local/x", True, "main/local/x"),
        ("/secrets/x", True, "main/secrets/x"),
        ("/alloc/data/x", True, "alloc/data/x"),
    ],
)
def test_paths_are_taken_as_the_task_sees_them(tmp_path: Path, path: str, own: bool, relative: str) -> None:
    root = a_root(tmp_path, sees_own_root=own)

    assert root.place(path) == (root.alloc, relative)
    assert root.place(f"{root.alloc}/alloc/x") == (root.alloc, "alloc/x")


def test_only_an_operator_opens_the_host_to_templates(tmp_path: Path) -> None:
    root = a_root(tmp_path, is_open=True)
    outside = tmp_path / "outside"
    write_rendered(root, str(outside), b"x", 0o600, None)

    assert read_text(root, str(outside)) == "x"
    for path in ("", "a\0b"):
        with pytest.raises(BadRequest):
            root.place(path)


def test_files_that_are_no_text_or_too_large_are_refused(tmp_path: Path) -> None:
    root = a_root(tmp_path)
    local = tmp_path / "a" / "main" / "local"
    (local / "binary").write_bytes(b"\xff\xfe")
    (local / "large").write_bytes(b"x" * (FILE_BYTES_MAX + 1))

    for path, words in (
        ("binary", "UTF-8"),
        ("large", "more than"),
        ("", "cannot be read"),
        ("none", "cannot be read"),
    ):
        with pytest.raises(Wrong, match=words):
            read_text(root, f"local/{path}")
    assert read_known(root, "local/none") is None
    assert read_known(root, "local") is None

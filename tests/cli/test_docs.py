from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from fedsched.cli import docs

PAGES = Path(__file__).parents[2] / "docs/reference"


def test_the_metrics_page_is_fresh() -> None:
    """In a process of its own: tests declare metrics too."""
    script = "import sys; from fedsched.cli.docs import metrics_page; sys.stdout.write(metrics_page())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)

    assert (PAGES / "metrics.md").read_text() == done.stdout, "run `python -m fedsched.cli.docs`"


def test_every_page_is_written_where_it_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(docs, "PAGES", {"a.md": lambda: "A\n", "b.md": lambda: "B\n"})

    docs.main(str(tmp_path / "new"))

    assert (tmp_path / "new/a.md").read_text() == "A\n"
    assert capsys.readouterr().out == f"{tmp_path}/new/a.md\n{tmp_path}/new/b.md\n"

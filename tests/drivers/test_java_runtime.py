"""Finding java, understanding what it says, and saying what to run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio

from fedsched.drivers import java_runtime
from fedsched.drivers.driver import DriverError
from fedsched.drivers.isolation.plan import Bind
from fedsched.drivers.java_runtime import JavaRuntime, find_java, java_argv, parse_version

OPEN_JDK = """Picked up JAVA_TOOL_OPTIONS: -Dx=1
openjdk version "17.0.15" 2025-04-15
OpenJDK Runtime Environment (build 17.0.15+6-Debian-1deb12u1)
OpenJDK 64-Bit Server VM (build 17.0.15+6-Debian-1deb12u1, mixed mode, sharing)
"""


def test_what_java_says_about_itself_is_understood() -> None:
    found = parse_version("/j/bin/java", OPEN_JDK)

    assert found.version == "17.0.15"
    assert found.runtime == "OpenJDK Runtime Environment (build 17.0.15+6-Debian-1deb12u1)"
    assert found.vm.startswith("OpenJDK 64-Bit Server VM")
    assert found.home == "/j"


def test_less_than_usual_is_enough() -> None:
    assert parse_version("/j/bin/java", 'java version "1.8.0_402"') == JavaRuntime("/j/bin/java", "1.8.0_402")


@pytest.mark.parametrize("text", ["", "java: command not found", 'version ""', "\x00\x01"])
def test_something_else_is_no_java(text: str) -> None:
    with pytest.raises(DriverError, match="names no version"):
        parse_version("/j/bin/java", text)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("echo 'no such machine' >&2; exit 3", "failed: no such machine"),
        ("exit 3", "failed: exit code 3"),
        ("exec sleep 60", "did not end"),
    ],
)
def test_a_java_that_does_not_work_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, why: str
) -> None:
    monkeypatch.setattr(java_runtime, "ASK_S", 0.5)
    (tmp_path / "java").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "java").chmod(0o755)

    with pytest.raises(DriverError, match=why):
        trio.run(find_java, str(tmp_path))


def test_a_program_that_cannot_be_executed_says_why(tmp_path: Path) -> None:
    (tmp_path / "java").write_text("#!/no/such/interpreter\n")
    (tmp_path / "java").chmod(0o755)

    with pytest.raises(DriverError, match="cannot be run"):
        trio.run(find_java, str(tmp_path))


def test_no_java_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(DriverError, match="no java in PATH"):
        trio.run(find_java, str(tmp_path))


def test_a_java_outside_the_usual_places_is_shown_to_the_task() -> None:
    system = (Bind("/usr", "/usr"), Bind("/opt/tools", "/elsewhere"))

    assert JavaRuntime("/usr/lib/jvm/17/bin/java", "17").binds(system) == ()
    assert JavaRuntime("/opt/jdk/bin/java", "17").binds(system) == (Bind("/opt/jdk", "/opt/jdk"),)
    assert JavaRuntime("/opt/tools/bin/java", "17").binds(system) == (Bind("/opt/tools", "/opt/tools"),)


@pytest.mark.parametrize(
    ("config", "argv"),
    [
        ({"jar_path": "local/a.jar"}, ["java", "-jar", "local/a.jar"]),
        (
            {"class": "Main", "class_path": "/local:/x", "jvm_options": ["-Xmx8m", "-Da=b c"], "args": ["1", 2]},
            ["java", "-Xmx8m", "-Da=b c", "-cp", "/local:/x", "Main", "1", "2"],
        ),
    ],
)
def test_the_command_is_put_together_in_javas_order(config: dict[str, Any], argv: list[str]) -> None:
    assert java_argv("java", config) == argv


@pytest.mark.parametrize("config", [{}, {"class": "A", "jar_path": "b.jar"}, {"jar_path": ""}, {"class": None}])
def test_a_task_runs_either_a_jar_or_a_class(config: dict[str, Any]) -> None:
    with pytest.raises(DriverError, match="either jar_path or class"):
        java_argv("java", config)

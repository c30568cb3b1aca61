"""java: the shared promises of all drivers with programs of a real Java runtime, isolated like those of exec."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from fedsched.drivers.driver import Driver, DriverError, ExitResult, Health, TaskDirs
from fedsched.drivers.isolation import probe
from fedsched.drivers.java import JavaDriver, make_driver
from fedsched.drivers.registry import DriverHost
from tests.drivers.conformance import DriverConformance
from tests.drivers.jails import mounts_below, obstacle
from tests.drivers.supervised import retire
from tests.drivers.test_exec import groups_left

REASON = obstacle()
pytestmark = [
    pytest.mark.skipif(bool(REASON), reason=f"this host cannot isolate tasks: {REASON}"),
    pytest.mark.skipif(shutil.which("java") is None, reason="no java in PATH"),
]
OPTIONS = ["-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx64m"]
"""A virtual machine that starts fast and takes little."""

ACT = """
import sun.misc.Signal;
import sun.misc.SignalHandler;

public class Act {
    public static void main(String[] words) throws Exception {
        switch (words[0]) {
            case "exit": System.exit(Integer.parseInt(words[1])); break;
            case "print": System.out.println(words[1]); System.err.println(words[1]); break;
            case "deaf":
                Signal.handle(new Signal("TERM"), SignalHandler.SIG_IGN);
                Signal.handle(new Signal("INT"), SignalHandler.SIG_IGN);
                System.out.println("deaf");
                break;
            case "kill":
                new ProcessBuilder("/bin/sh", "-c", "kill -TERM " + ProcessHandle.current().pid()).start();
                break;
            case "eat":
                java.util.List<byte[]> eaten = new java.util.ArrayList<>();
                while (true) eaten.add(new byte[1 << 20]);
            case "tell":
                System.out.println(System.getProperty("user.name") + " " + System.getProperty("told")
                    + " " + System.getProperty("user.dir") + " " + new java.io.File("/root").exists()
                    + " " + String.join(",", words));
                System.exit(0);
        }
        Thread.sleep(3600_000);
    }
}
"""


@functools.cache
def classes() -> Path | str:
    """Where the compiled program is, or why there is none."""
    if shutil.which("javac") is None:
        return "no javac to compile the tests' program with"
    folder = Path(tempfile.mkdtemp(prefix="fedsched-java-"))
    try:
        (folder / "Act.java").write_text(ACT)
        subprocess.run(["javac", "-nowarn", "Act.java"], cwd=folder, check=True, capture_output=True)
        (folder / "manifest").write_text("Main-Class: Act\n")
        subprocess.run(["jar", "cfm", "act.jar", "manifest", "Act.class"], cwd=folder, check=True, capture_output=True)
    except subprocess.CalledProcessError as error:
        shutil.rmtree(folder)
        return f"javac failed: {error.stderr.decode()[-200:]}"
    return folder


@pytest.fixture(scope="module", autouse=True)
def _compiled() -> Iterator[None]:
    found = classes()
    if isinstance(found, str):
        pytest.skip(found)
    yield
    shutil.rmtree(found)
    classes.cache_clear()


@pytest.fixture(autouse=True)
def _nothing_is_left(tmp_path: Path) -> Iterator[None]:
    yield
    retire(tmp_path / "java")
    assert mounts_below(tmp_path) == []
    assert groups_left() == []


@asynccontextmanager
async def open_java(place: Path, *, search: str | None = None, **settings: Any) -> AsyncIterator[JavaDriver]:
    host = DriverHost(state_dir=place / "java", settings=settings, cgroup_parent=f"fedsched-test-{os.getpid()}")
    driver = JavaDriver(host, search=search)
    async with trio.open_nursery() as nursery:
        await nursery.start(driver.run)
        yield driver
        nursery.cancel_scope.cancel()


class TestJava(DriverConformance):
    name = "java"
    has_signals = False
    """The virtual machine keeps SIGUSR1 for itself; another signal is tried below."""

    def open_driver(self, place: Path) -> AbstractAsyncContextManager[Driver]:
        return open_java(place)

    def prepare(self, dirs: TaskDirs) -> None:
        folder = classes()
        assert isinstance(folder, Path)
        for name in ("Act.class", "act.jar"):
            shutil.copy(folder / name, dirs.local / name)

    def act(self, *words: str) -> Mapping[str, Any]:
        return {"class": "Act", "class_path": "/local", "jvm_options": OPTIONS, "args": list(words)}

    def shell(self, script: str) -> Mapping[str, Any]:
        raise AssertionError("java tasks are no scripts")

    def sleep_forever(self) -> Mapping[str, Any]:
        return self.act("sleep")

    def exit_with(self, code: int) -> Mapping[str, Any]:
        return self.act("exit", str(code))

    def end_by_signal(self) -> Mapping[str, Any]:
        return self.act("kill")

    def ignore_signals(self) -> Mapping[str, Any]:
        return self.act("deaf")

    def print(self, text: str) -> Mapping[str, Any]:
        return self.act("print", text)


SUITE = TestJava()


def ended(place: Path, config: Mapping[str, Any], **fields: Any) -> tuple[ExitResult, str]:
    async def scenario() -> tuple[ExitResult, str]:
        async with open_java(place) as driver:
            task = SUITE.task(place, config, **fields)
            async with SUITE.started(driver, task):
                result = await driver.wait_task(task.id)
                return result, (task.dirs.logs / "web.stdout.0").read_text()

    return SUITE.run(scenario)


def test_a_jar_runs_isolated_as_nobody_with_its_options_and_arguments(tmp_path: Path) -> None:
    config = {"jar_path": "local/act.jar", "jvm_options": [*OPTIONS, "-Dtold=so"], "args": ["tell", "a b", "c"]}
    result, said = ended(tmp_path, config)

    assert result.is_success
    assert said == "nobody so / false tell,a b,c\n"


def test_a_signal_reaches_the_virtual_machine(tmp_path: Path) -> None:
    async def scenario() -> ExitResult:
        async with open_java(tmp_path) as driver:
            task = SUITE.task(tmp_path, SUITE.print("up"))
            async with SUITE.started(driver, task):
                await SUITE.output(task, "stdout", "up")
                await driver.signal_task(task.id, "SIGHUP")
                return await driver.wait_task(task.id)

    assert SUITE.run(scenario).exit_code == 128 + 1


def test_a_program_outside_its_own_memory_fails_by_itself(tmp_path: Path) -> None:
    result, _ = ended(tmp_path, SUITE.act("eat"))

    assert (result.exit_code, result.oom_killed) == (1, False)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({}, "either jar_path or class"),
        ({"class": "A", "jar_path": "a.jar"}, "not both"),
        ({"class": "A", "cap_add": ["sys_admin"]}, "does not allow"),
        ({"class": "A", "work_dir": "here"}, "is not absolute"),
        ({"class": "A", "args": ["\0"]}, "zero byte"),
    ],
)
def test_a_task_that_cannot_be_is_refused(tmp_path: Path, config: dict[str, Any], why: str) -> None:
    async def scenario() -> None:
        async with open_java(tmp_path) as driver:
            with pytest.raises(DriverError, match=why):
                await driver.start_task(SUITE.task(tmp_path, config))

    SUITE.run(scenario)


def test_root_is_refused(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_java(tmp_path) as driver:
            with pytest.raises(DriverError, match="may not run as user root"):
                await driver.start_task(SUITE.task(tmp_path, SUITE.sleep_forever(), user="root"))

    SUITE.run(scenario)


def test_the_fingerprint_names_the_runtime(tmp_path: Path) -> None:
    async def scenario() -> Mapping[str, str]:
        driver = make_driver(DriverHost(state_dir=tmp_path / "java"))
        return (await driver.detect()).attributes

    found = SUITE.run(scenario)

    assert found["driver.java"] == "1"
    assert found["driver.java.version"][0].isdigit()
    assert "Runtime Environment" in found["driver.java.runtime"]
    assert "VM" in found["driver.java.vm"]


def test_it_is_undetected_without_java_or_without_isolation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        async with open_java(tmp_path, search=str(tmp_path)) as driver:
            found = await driver.detect()
            assert found.health is Health.UNDETECTED
            assert "no java in PATH" in found.description
        monkeypatch.setattr(probe, "TRIAL", ("sh", "-c", "cat > /dev/null; printf 'not here'"))
        async with open_java(tmp_path) as driver:
            found = await driver.detect()
            assert (found.health, found.description) == (Health.UNDETECTED, "not here")

    SUITE.run(scenario)


def test_a_runtime_outside_the_usual_places_is_shown_to_its_tasks(tmp_path: Path) -> None:
    java = shutil.which("java")
    assert java is not None
    home = tmp_path / "jdk"
    (home / "bin").mkdir(parents=True)
    (home / "bin/java").write_text(f'#!/bin/sh\nexec {java} "$@"\n')
    (home / "bin/java").chmod(0o755)

    async def scenario() -> tuple[ExitResult, str]:
        async with open_java(tmp_path, search=str(home / "bin")) as driver:
            task = SUITE.task(tmp_path, SUITE.act("tell"))
            async with SUITE.started(driver, task):
                result = await driver.wait_task(task.id)
                return result, (task.dirs.logs / "web.stdout.0").read_text()

    result, said = SUITE.run(scenario)

    assert result.is_success
    assert said.startswith("nobody")

"""The Java runtime of a host: where it is, what it says about itself, and how a program is started with it."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

import trio

from fedsched.drivers.driver import DriverError
from fedsched.drivers.isolation.plan import Bind

ASK_S: Final = 30.0
"""A virtual machine that has not said its version by then will not run tasks either."""
_MAX_SAID: Final = 200


@dataclass(frozen=True, slots=True)
class JavaRuntime:
    """A `java` that was found and has answered."""

    path: str
    """With all links resolved."""
    version: str
    runtime: str = ""
    vm: str = ""

    @property
    def home(self) -> str:
        """The directory that a task must see for this java to work."""
        return str(Path(self.path).parent.parent)

    def binds(self, system: Iterable[Bind]) -> tuple[Bind, ...]:
        """What a task needs to see beyond the usual parts of the host: nothing, if java is among them."""
        path = PurePosixPath(self.path)
        seen = any(bind.source == bind.target and path.is_relative_to(bind.source) for bind in system)
        return () if seen else (Bind(self.home, self.home),)


async def find_java(search: str | None = None) -> JavaRuntime:
    """Ask the `java` in PATH what it is. Raises `DriverError` with the reason if there is none that works."""
    path = locate_java(search)
    try:
        with trio.fail_after(ASK_S):
            said = await trio.run_process([path, "-version"], capture_stdout=True, capture_stderr=True, check=False)
    except OSError as error:
        raise DriverError(f"{path} cannot be run: {error.strerror}") from error
    except trio.TooSlowError:
        raise DriverError(f"{path} -version did not end within {ASK_S:g} s") from None
    text = (said.stderr + said.stdout).decode(errors="replace")
    if said.returncode:
        last = text.strip().splitlines()[-1:] or [f"exit code {said.returncode}"]
        raise DriverError(f"{path} -version failed: {last[0][:_MAX_SAID]}")
    return parse_version(path, text)


def locate_java(search: str | None = None) -> str:
    """The program behind `java` in PATH; raises `DriverError` if there is none."""
    found = shutil.which("java", path=search)
    if found is None:
        raise DriverError("no java in PATH", hint="install a Java runtime, or put it into the agent's PATH")
    return os.path.realpath(found)


def parse_version(path: str, text: str) -> JavaRuntime:
    """Read what `java -version` writes: a line with the version, one about the runtime, one about the machine."""
    lines = [line.strip()[:_MAX_SAID] for line in text.splitlines()]
    for number, line in enumerate(lines):
        version = re.search(r'version "([^"]+)"', line)
        if version is not None:
            runtime, vm = [*lines[number + 1 :], "", ""][:2]
            return JavaRuntime(path, version[1], runtime, vm)
    raise DriverError(f"{path} -version names no version: {text.strip()[:_MAX_SAID]!r}")


def java_argv(java: str, config: Mapping[str, Any]) -> list[str]:
    """The command of a task: the machine's options, the class path, what to run, and its own arguments."""
    jar, main_class = str(config.get("jar_path") or ""), str(config.get("class") or "")
    if bool(jar) == bool(main_class):
        raise DriverError(
            "a java task needs either jar_path or class" + (", not both" if jar else ""),
            hint='jar_path = "local/app.jar", or class = "Main" with class_path',
        )
    argv = [java, *_texts(config.get("jvm_options"))]
    if config.get("class_path"):
        argv += ["-cp", str(config["class_path"])]
    argv += ["-jar", jar] if jar else [main_class]
    return [*argv, *_texts(config.get("args"))]


def _texts(value: Sequence[Any] | None) -> list[str]:
    return [str(one) for one in value or ()]

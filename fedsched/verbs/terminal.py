"""Where a verb runs: its output, its questions, and the agent it may talk to.

The command line makes one per process; the shell will make one per session and keep the link open. A verb sees only
this, so that it never has to know which of the two it runs in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, TextIO

from fedsched.sdk.target import Target, is_true, target_of
from fedsched.verbs.flags import BadUsage, Given
from fedsched.verbs.view import as_json

if TYPE_CHECKING:
    from fedsched.sdk.client import Client

Connect = Callable[[Target], "Client"]


class Terminal:
    """One person (or script) and what it sees."""

    def __init__(
        self,
        out: TextIO,
        err: TextIO,
        stdin: TextIO,
        environ: Mapping[str, str],
        *,
        connect: Connect | None = None,
        now_ns: Callable[[], int] = time.time_ns,
    ) -> None:
        self.environ = environ
        self.stdin = stdin
        self.now_ns = now_ns
        self.is_colourful = False
        self.out = out
        self.err = err
        self.connect = connect or _connect
        self._client: Client | None = None
        self._target: Target | None = None

    def prepare(self, given: Given) -> None:
        """Take the connection and colour flags of the verb that is about to run."""
        wanted = {name.replace("-", "_"): given.get(name) for name in _TARGET_FLAGS}
        self._target = target_of(given.get("address") or "", self.environ, **wanted)
        self.is_colourful = self._wants_colour(given)

    @property
    def target(self) -> Target:
        if self._target is None:
            self._target = target_of("", self.environ)
        return self._target

    @property
    def client(self) -> Client:
        """The link to the agent, opened when it is first needed."""
        if self._client is None:
            self._client = self.connect(self.target)
        return self._client

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def write(self, text: str) -> None:
        self.out.write(text)

    def write_bytes(self, data: bytes, *, to_err: bool = False) -> None:
        """Write what somebody else wrote, byte for byte, and at once."""
        out = self.err if to_err else self.out
        raw = getattr(out, "buffer", None)
        if raw is None:
            out.write(data.decode("utf-8", "replace"))
        else:
            out.flush()
            raw.write(data)
        out.flush()

    def say(self, line: str = "") -> None:
        self.write(f"{line}\n")

    def heading(self, title: str) -> None:
        """Begin a section: a blank line and the title, bold on a terminal."""
        self.write(f"\n{self.bold(title)}\n")

    def warn(self, line: str) -> None:
        self.err.write(f"{line}\n")

    def bold(self, text: str) -> str:
        return f"\x1b[1m{text}\x1b[0m" if self.is_colourful else text

    def formatted(self, given: Given, value: Callable[[], Any]) -> bool:
        """Print the object as `-json` or `-t` ask for, if either does; `value` is worked out only then."""
        if given["json"] and given.get("t") is not None:
            raise BadUsage("Both json and template formatting are not allowed")
        if given["json"]:
            self.show_json(value())
            return True
        if given.get("t") is not None:
            from fedsched.verbs.template import render  # few commands are asked for it

            self.say(render(given["t"], value()))
            return True
        return False

    def show_json(self, value: Any) -> None:
        """Print the object, whether it was asked for as JSON or is never shown in another way."""
        self.write(as_json(value))

    def confirm(self, question: str) -> bool:
        """Ask; only `y` is a yes, and a closed input is a no."""
        self.out.write(f"{question} [y/N] ")
        self.out.flush()
        return self.stdin.readline().strip() == "y"

    def _wants_colour(self, given: Given) -> bool:
        """Decide: flag beats variable beats terminal, and within each "no" beats "force"."""
        if given.get("no-color") or given.get("force-color"):
            return not given.get("no-color")
        if self.environ.get("NO_COLOR") or is_true(self.environ.get("NOMAD_CLI_NO_COLOR", "")):
            return False
        return is_true(self.environ.get("NOMAD_CLI_FORCE_COLOR", "")) or self.out.isatty()


_TARGET_FLAGS: Final = (
    "region",
    "namespace",
    "token",
    "ca-cert",
    "ca-path",
    "client-cert",
    "client-key",
    "tls-server-name",
    "tls-skip-verify",
)


def _connect(target: Target) -> Any:
    from fedsched.sdk.connect import open_client  # only commands that talk to an agent pay for the link

    return open_client(target)

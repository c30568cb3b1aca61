"""What a verb is: its words, its flags and arguments, and the function that does it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from fedsched.verbs.flags import Argument, Flag, Given, flag_form, parse, usage

if TYPE_CHECKING:
    from fedsched.verbs.terminal import Terminal

OK: Final = 0
FAILED: Final = 1
NOT_PLACED: Final = 2
"""Submitted, but not everything could be placed."""

NOT_ALL_ANSWERED: Final = 2
"""Several regions were asked, and some of them did not answer."""

Run = Callable[["Terminal", Given], int]


class Regions(Enum):
    """What a verb makes of `-region a,b` and `-region '*'`."""

    ONE = "one"
    """It writes or follows something: it is refused."""
    EACH = "each"
    """It runs in each of them, and what comes out is laid side by side (`verbs.fan_out`)."""
    ITSELF = "itself"
    """It tells of all regions anyway, and picks those that are named."""


JSON: Final = Flag("json", "print the answer as JSON", bool)
TEMPLATE: Final = Flag("t", "format the answer with a Go template, over what -json prints", value="template")
VERBOSE: Final = Flag("verbose", "show full ids and more columns", bool)

CONNECTION_FLAGS: Final = (
    Flag("address", "agent to talk to, such as http://127.0.0.1:4646 (FEDSCHED_ADDR, NOMAD_ADDR)", value="url"),
    Flag(
        "region",
        "region to act on; the agent's own by default (FEDSCHED_REGION, NOMAD_REGION). Commands that only look take"
        " several, `eu,us`, or `*` for all",
        value="name",
    ),
    Flag("namespace", "namespace to act in (FEDSCHED_NAMESPACE, NOMAD_NAMESPACE)", value="name"),
    Flag("token", "secret id of the access token (FEDSCHED_TOKEN, NOMAD_TOKEN)", value="secret"),
    Flag("ca-cert", "PEM file of the authority to trust (FEDSCHED_CACERT, NOMAD_CACERT)", value="file"),
    Flag("ca-path", "directory of authorities to trust (FEDSCHED_CAPATH, NOMAD_CAPATH)", value="dir"),
    Flag("client-cert", "PEM file of the certificate to show (FEDSCHED_CLIENT_CERT, NOMAD_CLIENT_CERT)", value="file"),
    Flag("client-key", "PEM file of its private key (FEDSCHED_CLIENT_KEY, NOMAD_CLIENT_KEY)", value="file"),
    Flag(
        "tls-server-name",
        "name the agent's certificate must carry (FEDSCHED_TLS_SERVER_NAME, NOMAD_TLS_SERVER_NAME)",
        value="name",
    ),
    Flag("tls-skip-verify", "trust any certificate; not safe (FEDSCHED_SKIP_VERIFY, NOMAD_SKIP_VERIFY)", bool),
)
"""Of every verb that talks to an agent. The variables in parentheses stand in for a flag that is not given."""

COLOUR_FLAGS: Final = (
    Flag("no-color", "never use colour (NOMAD_CLI_NO_COLOR, NO_COLOR)", bool),
    Flag("force-color", "use colour even when not on a terminal (NOMAD_CLI_FORCE_COLOR)", bool),
)


SEVERAL: Final = {
    Regions.EACH: "Takes several regions: -region eu,us, or -region '*' for all.",
    Regions.ITSELF: "Tells of all regions; -region eu,us picks some.",
}
"""What help says of a verb that is not for one region."""


class Verb(NamedTuple):
    """One thing a person can type."""

    words: tuple[str, ...]
    summary: str
    doc: str
    run: Run
    flags: tuple[Flag, ...]
    arguments: tuple[Argument, ...]
    is_remote: bool
    is_raw: bool = False
    """Whether the words are handed on as they are, to something with its own idea of flags."""
    regions: Regions = Regions.ONE

    @property
    def name(self) -> str:
        return " ".join(self.words)

    @property
    def all_flags(self) -> tuple[Flag, ...]:
        return (*self.flags, *(CONNECTION_FLAGS if self.is_remote else ()), *COLOUR_FLAGS)

    def parse(self, words: Sequence[str]) -> Given:
        """Sort the words after the verb; raises `BadUsage`."""
        if self.is_raw:
            return Given({"words": list(words)}, frozenset({"words"}))
        return parse(words, self.all_flags, self.arguments)

    def help(self, program: str = "fedsched") -> str:
        """Give the text of `-help`."""
        text = f"Usage: {program} {self.name} {usage(self.all_flags, self.arguments)}\n\n{_filled(self.doc, 2)}"
        if self.regions is not Regions.ONE:
            text += f"\n{_filled(SEVERAL[self.regions], 2)}"
        if self.arguments:
            text += "\nArguments:\n\n" + "".join(f"  <{one.name}>\n{_filled(one.doc, 4)}" for one in self.arguments)
        groups = [("Options", self.flags), ("General options", COLOUR_FLAGS)]
        if self.is_remote:
            groups.insert(1, ("Connection options", CONNECTION_FLAGS))
        for title, flags in groups:
            if flags:
                text += f"\n{title}:\n\n" + "".join(f"  {flag_form(one)}\n{_filled(one.doc, 4)}" for one in flags)
        return text


class Verbs:
    """The verbs of one module, in the order of their declaration."""

    def __init__(self) -> None:
        self.all: list[Verb] = []

    def verb(
        self,
        name: str,
        summary: str,
        *,
        doc: str = "",
        flags: Sequence[Flag] = (),
        arguments: Sequence[Argument] = (),
        is_remote: bool = True,
        is_raw: bool = False,
        regions: Regions = Regions.ONE,
    ) -> Callable[[Run], Run]:
        """Declare the decorated function as what `name` does."""

        def declare(run: Run) -> Run:
            text = doc or f"{summary[:1].upper()}{summary[1:]}."
            words = tuple(name.split())
            self.all.append(Verb(words, summary, text, run, tuple(flags), tuple(arguments), is_remote, is_raw, regions))
            return run

        return declare


def _filled(text: str, indent: int) -> str:
    """Wrap to 80 columns, paragraph by paragraph; short because `textwrap` costs an import of `re`."""
    lines: list[str] = []
    for paragraph in text.split("\n\n"):
        if lines:
            lines.append("")
        line = ""
        for word in paragraph.split():
            if line and indent + len(line) + 1 + len(word) > 80:
                lines.append(" " * indent + line)
                line = word
            else:
                line = f"{line} {word}" if line else word
        lines.append(" " * indent + line)
    return "\n".join(lines) + "\n"

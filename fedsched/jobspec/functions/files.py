"""Functions of files and paths: only where a person runs a command, never on a server."""

from __future__ import annotations

import posixpath
from binascii import b2a_base64

from fedsched.jobspec.context import Context, Files, FunctionFailed
from fedsched.jobspec.functions.patterns import compile_pattern
from fedsched.jobspec.functions.registry import function
from fedsched.jobspec.limits import MAX_ELEMENTS, MAX_STRING_CHARS
from fedsched.jobspec.types import STRING
from fedsched.jobspec.values import Value, boolean, make_set, string

_PATH = ("path", STRING)


@function("file", takes=(_PATH,), context=True)
def file(context: Context, path: Value) -> Value:
    try:
        return string(_read(context, path.text).decode())
    except UnicodeDecodeError:
        raise FunctionFailed(f"{path.text!r} is no text (UTF-8); use filebase64") from None


@function("filebase64", takes=(_PATH,), context=True)
def filebase64(context: Context, path: Value) -> Value:
    return string(b2a_base64(_read(context, path.text), newline=False).decode())


@function("fileexists", takes=(_PATH,), context=True)
def fileexists(context: Context, path: Value) -> Value:
    try:
        return boolean(_files(context).exists(path.text, context.directory))
    except (OSError, ValueError) as error:
        raise FunctionFailed(f"{path.text[:60]!r} cannot be looked at: {error}") from None


@function("fileset", takes=(_PATH, ("pattern", STRING)), context=True)
def fileset(context: Context, path: Value, pattern: Value) -> Value:
    """Files below a directory that match: `*` within a name, `**` across directories."""
    compiled = compile_pattern(_glob(pattern.text))
    try:
        names = _files(context).under(path.text, context.directory, MAX_ELEMENTS)
    except (OSError, ValueError) as error:
        raise FunctionFailed(f"{path.text[:60]!r} cannot be listed: {error}") from None
    return make_set(STRING, [string(name) for name in names if compiled.fullmatch(name)])


@function("abspath", takes=(_PATH,), context=True)
def abspath(context: Context, path: Value) -> Value:
    return string(_files(context).absolute(path.text))


@function("pathexpand", takes=(_PATH,), context=True)
def pathexpand(context: Context, path: Value) -> Value:
    files = _files(context)
    if path.text == "~" or path.text.startswith("~/"):
        return string(files.home() + path.text[1:])
    if path.text.startswith("~"):
        raise FunctionFailed("only one's own home directory can be expanded")
    return path


@function("basename", takes=(_PATH,), context=True)
def basename(context: Context, path: Value) -> Value:
    _files(context)
    if not path.text:
        return string(".")
    return string(posixpath.basename(path.text.rstrip("/")) or "/")


@function("dirname", takes=(_PATH,), context=True)
def dirname(context: Context, path: Value) -> Value:
    _files(context)
    return string(posixpath.normpath(posixpath.dirname(path.text) or "."))


def _files(context: Context) -> Files:
    if not context.allow_files or context.files is None:
        raise FunctionFailed("files cannot be used here; read the job file with the command line instead")
    return context.files


def _read(context: Context, path: str) -> bytes:
    try:
        return _files(context).read(path, context.directory, MAX_STRING_CHARS)
    except (OSError, ValueError) as error:
        raise FunctionFailed(f"{path[:60]!r} cannot be read: {error}") from None


def _glob(pattern: str) -> str:
    """A file pattern as a regular expression."""
    parts: list[str] = []
    at, braces = 0, 0
    while at < len(pattern):
        char = pattern[at]
        at += 1
        if char == "*":
            if pattern.startswith("*/", at):
                parts.append("(?:.*/)?")
                at += 2
            elif pattern.startswith("*", at):
                parts.append(".*")
                at += 1
            else:
                parts.append("[^/]*")
        elif char == "?":
            parts.append("[^/]")
        elif char == "{":
            braces += 1
            parts.append("(?:")
        elif char == "}" and braces:
            braces -= 1
            parts.append(")")
        elif char == "," and braces:
            parts.append("|")
        elif char == "[" and "]" in pattern[at:]:
            end = pattern.index("]", at)
            negated = pattern[at] in "!^"
            parts.append(("[^" if negated else "[") + pattern[at + negated : end].replace("\\", "\\\\") + "]")
            at = end + 1
        else:
            parts.append(_quoted(char))
    return "(?s)" + "".join(parts)


def _quoted(char: str) -> str:
    return "\\" + char if char in r"\.+*?()|[]{}^$" else char

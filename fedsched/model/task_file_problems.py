"""What can be wrong with a task's files: artifacts, templates, payload. None may leave the allocation's directory."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator

from fedsched.model.problem import Problem, one_of
from fedsched.model.task import Task, TaskArtifact, Template
from fedsched.model.text_checks import GRAMMAR, TextChecks

MODES = frozenset({"", "any", "file", "dir"})
DIGEST_HEX = {"md5": 32, "sha1": 40, "sha256": 64, "sha512": 128}
CHANGE_MODES = frozenset({"restart", "signal", "noop", "script"})

Found = Iterator[Problem]


def task_file_problems(task: Task, path: str, texts: TextChecks = GRAMMAR) -> Found:
    """Check what is put into a task's directory."""
    for i, artifact in enumerate(task.artifacts):
        where = f"{path}.Artifacts[{i}]"
        causes = tuple(_artifact(artifact, where))
        if causes:
            yield Problem(where, f"Artifact {i + 1} validation failed", causes)
    seen: dict[str, int] = {}
    for number, template in enumerate(task.templates, 1):
        where = f"{path}.Templates[{number - 1}]"
        causes = tuple(_template(template, where, texts))
        if causes:
            yield Problem(where, f"Template {number} validation failed", causes)
        if template.dest_path in seen:
            text = f"Template {number} has same destination as {seen[template.dest_path]}"
            yield Problem(f"{where}.DestPath", text)
        elif template.dest_path:
            seen[template.dest_path] = number
    if task.dispatch_payload is not None:
        yield from _payload(task.dispatch_payload.file, f"{path}.DispatchPayload.File")


def escapes(task_path: str, *, base: str = "task") -> bool:
    """Whether a path, taken from the task's directory, ends outside of the allocation's."""
    joined = posixpath.normpath(f"alloc/{base}/{task_path}")
    return joined != "alloc" and not joined.startswith("alloc/")


def _artifact(artifact: TaskArtifact, path: str) -> Found:
    if not artifact.getter_source:
        yield Problem(f"{path}.GetterSource", "source must be specified", hint="a URL, or a path that go-getter takes")
    if artifact.getter_mode not in MODES:
        text = f'invalid artifact mode "{artifact.getter_mode}"; must be one of: any, file, dir'
        yield Problem(f"{path}.GetterMode", text, hint=one_of(artifact.getter_mode, MODES - {""}))
    if escapes(artifact.relative_dest):
        yield Problem(f"{path}.RelativeDest", "invalid destination path: it leaves the allocation's directory")
    checksum = artifact.getter_options.get("checksum", "")
    if checksum and "${" not in checksum:
        yield from _checksum(checksum.strip(), f"{path}.GetterOptions")


def _checksum(text: str, path: str) -> Found:
    kind, colon, digest = text.partition(":")
    if not colon:
        yield Problem(path, f'invalid checksum "{text}"', hint="write it as type:hex, such as sha256:9f86d0...")
    elif kind == "file" and digest:
        return  # a list of checksums somewhere: looked at when the artifact is fetched
    elif kind not in DIGEST_HEX:
        yield Problem(path, f'unsupported checksum type "{kind}"', hint=one_of(kind, DIGEST_HEX))
    elif not re.fullmatch(rf"[0-9a-fA-F]{{{DIGEST_HEX[kind]}}}", digest):
        yield Problem(path, f"invalid {kind} checksum: {DIGEST_HEX[kind]} hex digits are expected", hint="")


def _template(template: Template, path: str, texts: TextChecks) -> Found:
    if not template.source_path and not template.embedded_tmpl:
        yield Problem(path, "Must specify a source path or have an embedded template", hint="give it source or data")
    elif template.embedded_tmpl:
        wrong = texts.template(template.embedded_tmpl, template.left_delim, template.right_delim)
        if wrong is not None:
            yield Problem(f"{path}.EmbeddedTmpl", wrong[0], hint=wrong[1])
    if not template.dest_path:
        yield Problem(
            f"{path}.DestPath", "Must specify a destination for the template", hint='such as "local/app.conf"'
        )
    elif escapes(template.dest_path):
        yield Problem(f"{path}.DestPath", "template destination escapes allocation directory")
    if template.change_mode not in CHANGE_MODES:
        text = f'Invalid change mode given: "{template.change_mode}"'
        yield Problem(f"{path}.ChangeMode", text, hint=one_of(template.change_mode, CHANGE_MODES))
    if template.change_mode == "signal" and template.envvars:
        text = "cannot use signals with env var templates"
        yield Problem(f"{path}.ChangeMode", text, hint="an environment changes only with a restart")
    yield from _change_script(template, path)
    if template.splay_s < 0:
        yield Problem(f"{path}.Splay", "Must specify positive splay value")
    if not re.fullmatch(r"[0-7]{1,12}", template.perms or "0"):
        yield Problem(f"{path}.Perms", f'Failed to parse "{template.perms}" as octal', hint='such as "0644"')
    yield from _wait(template, path)


def _change_script(template: Template, path: str) -> Found:
    script = template.change_script
    if template.change_mode == "script" and (script is None or not script.command):
        text = "must specify script configuration value when change mode is script"
        yield Problem(f"{path}.ChangeScript.Command", text, hint="give it a change_script block with a command")
    if script is not None and script.timeout_s < 0:
        yield Problem(f"{path}.ChangeScript.Timeout", "must not be negative")


def _wait(template: Template, path: str) -> Found:
    wait = template.wait
    if wait is None:
        return
    for name, value in (("Min", wait.min_s), ("Max", wait.max_s)):
        if value is not None and value < 0:
            yield Problem(f"{path}.Wait.{name}", f"wait {name.lower()} must not be negative")
    if wait.min_s is not None and wait.max_s is not None and wait.min_s > wait.max_s:
        yield Problem(f"{path}.Wait", "wait min must not be greater than max")


def _payload(file: str, path: str) -> Found:
    if not file:
        yield Problem(path, "dispatch_payload names no file", hint='such as file = "input.json"')
    elif escapes(f"local/{file}", base="task") or escapes(file, base="task/local"):
        yield Problem(path, f"dispatch_payload file {file!r} leaves the task's directory")

"""Renders the templates of a task before it starts, keeps them up to date, and acts on the changes.

Before the first start all templates must be complete: while data is missing the task stays pending, and an event says
what it waits for. From then on the data is watched; a template whose text comes out other than before is written, and
the task is restarted, signalled, or a script is run in it, as the template asks for. A rendering that fails later on
leaves the file as it is: a running task is not stopped for a variable that somebody is editing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final, TypeVar

import trio

from fedsched.client.context import TaskContext
from fedsched.client.hooks.hook import NO_RESULT, HookFailed, HookResult, TaskHook
from fedsched.client.paths import Owner
from fedsched.client.template.feed import DataFeed
from fedsched.client.template.files import FileRoot, read_known, read_text, write_rendered
from fedsched.client.template.watch_core import Act, TemplateRules, TemplateWatchCore
from fedsched.drivers.driver import DriverError, ExecCommand, ExitResult
from fedsched.model.errors import BadRequest
from fedsched.model.task import ChangeScript, Template
from fedsched.model.task_state import TaskEvent
from fedsched.template.data import Dependency, Inputs
from fedsched.template.env_file import parse_env
from fedsched.template.errors import TemplateError, Wrong
from fedsched.template.render import CompiledTemplate, Rendered, compile_template
from fedsched.template.values import Budget
from fedsched.wire.groups import open_plain_nursery

T = TypeVar("T")
EVENT: Final = "Template"
EVENT_EVERY_S: Final = 3.0
NAMED_MAX: Final = 3
RENDERING: Final = trio.CapacityLimiter(2)
"""Threads that render or write templates at one time, for the whole client."""


@dataclass(slots=True)
class _Prepared:
    """One template of the task: read, and what is known of its file."""

    template: Template
    compiled: CompiledTemplate
    destination: str
    mode: int
    owner: Owner | None
    used: frozenset[Dependency] = frozenset()
    data: bytes | None = None
    """What was written last."""


class TemplatesHook(TaskHook):
    """All templates of one task."""

    name: ClassVar[str] = "templates"

    def __init__(self, task: TaskContext) -> None:
        super().__init__(task)
        self._feed = DataFeed(task)
        self._prepared: list[_Prepared] = []
        self._is_up = False
        self._is_adopted = False
        self._begins = trio.Event()
        """The first rendering is done, now or before this agent came."""
        self._core: TemplateWatchCore | None = None
        self._first_scripts: tuple[ChangeScript, ...] = ()
        """To be run once the task is up for the first time."""

    @property
    def is_idle(self) -> bool:
        return not self.task.task.templates and not self._prepared

    async def prestart(self, state: Mapping[str, str]) -> HookResult:
        if not self.task.task.templates:
            return NO_RESULT
        await self._prepare()
        if not (self.task.task_id and await self._adopt()):
            await self._render_first()
            if not self._begins.is_set():
                self._first_scripts = self._for_first_render()
        if self._core is not None:
            self._core.settled()
        self._begins.set()
        return HookResult(template_env=self._env())

    async def poststart(self) -> None:
        self._is_up = True
        scripts, self._first_scripts = self._first_scripts, ()
        async with open_plain_nursery() as nursery:
            for script in scripts:
                nursery.start_soon(self._run_script, script)

    async def prekill(self) -> None:
        self._is_up = False

    async def exited(self, result: ExitResult) -> None:
        self._is_up = False

    async def run(self) -> None:
        if not self.task.task.templates:
            return
        await self._begins.wait()
        try:
            await self._keep_fresh()
        except HookFailed as failed:
            self.task.actions.kill(failed.message, is_failure=True)

    # ---- reading --------------------------------------------------------------------------------------------

    async def _prepare(self) -> None:
        """Read all templates, once; raises `HookFailed` for one that cannot be."""
        if self._prepared:
            return
        prepared = []
        for number, template in enumerate(self.task.task.templates, 1):
            prepared.append(await self._read(template, f"template {number}"))
        self._prepared = prepared

    async def _read(self, template: Template, name: str) -> _Prepared:
        environment = self.task.environment()
        settings = self.task.parts.settings.template
        text = template.embedded_tmpl
        try:
            if template.source_path:
                name = environment.text(template.source_path)
                text = await _in_thread(read_text, FileRoot.of(self.task), name)
            compiled = compile_template(
                text,
                name=name,
                left=template.left_delim,
                right=template.right_delim,
                denied=settings.function_denylist,
                error_on_missing_key=template.err_missing_key,
            )
        except (TemplateError, Wrong) as error:
            raise HookFailed(error.message, hint=error.hint, event=EVENT) from None
        owner = None
        if template.uid is not None or template.gid is not None:
            owner = Owner(-1 if template.uid is None else template.uid, -1 if template.gid is None else template.gid)
        return _Prepared(template, compiled, environment.text(template.dest_path), _mode(template.perms, name), owner)

    # ---- rendering ------------------------------------------------------------------------------------------

    async def _render_first(self) -> None:
        """Render all of them, waiting for their data as long as it takes."""
        watched: set[Dependency] = set(self._feed.values)
        said = _Said(trio.current_time())
        async with open_plain_nursery() as nursery:
            while True:
                self._feed.take_news()
                missing: set[Dependency] = set()
                for one in self._prepared:
                    missing |= (await self._render(one)).missing
                if not missing:
                    break
                for dependency in sorted({each for one in self._prepared for each in one.used} - watched):
                    watched.add(dependency)
                    nursery.start_soon(self._feed.watch, dependency)
                await self._wait_for(missing, said)
            nursery.cancel_scope.cancel("all templates are rendered")

    async def _wait_for(self, missing: set[Dependency], said: _Said) -> None:
        """Wait for news; say what is waited for, at most once in a while."""
        while True:
            with trio.move_on_at(said.next_at) as patience:
                await self._feed.wait_changed()
            if self._feed.failure:
                raise HookFailed(f"Template failed: {self._feed.failure}", event=EVENT)
            if not patience.cancelled_caught:
                return
            text = _missing_text(missing)
            if said.is_news(text, trio.current_time()):
                self.task.actions.emit(TaskEvent(type=EVENT, message=text, display_message=text))

    async def _render(self, one: _Prepared) -> Rendered:
        """Render and, if it is complete and other than before, write; raises `HookFailed`."""
        try:
            rendered = await self._filled_in(one)
            one.used = rendered.used
            if rendered.is_complete:
                data = rendered.text.encode(errors="replace")
                if data != one.data:
                    await _in_thread(write_rendered, FileRoot.of(self.task), one.destination, data, one.mode, one.owner)
                    one.data = data
        except BadRequest as error:
            raise HookFailed(error.message, hint=error.hint, event=EVENT) from None
        return rendered

    async def _filled_in(self, one: _Prepared) -> Rendered:
        root = FileRoot.of(self.task)
        inputs = Inputs(
            fetched=dict(self._feed.values),
            lookup=self.task.environment().lookup,
            read_file=lambda path: read_text(root, path),
            now_ns=self.task.parts.now_ns(),
        )
        budget = Budget(clock=self.task.parts.env.now)
        return await _in_thread(one.compiled.render, inputs, budget)

    def _env(self) -> dict[str, str]:
        values: dict[str, str] = {}
        for one in self._prepared:
            if not one.template.envvars or one.data is None:
                continue
            try:
                values |= parse_env(one.data.decode(), one.destination)
            except BadRequest as error:
                raise HookFailed(error.message, hint=error.hint, event=EVENT) from None
        return values

    # ---- watching -------------------------------------------------------------------------------------------

    async def _keep_fresh(self) -> None:
        core = self._core = TemplateWatchCore([self._rules(one.template) for one in self._prepared])
        watched: dict[Dependency, trio.CancelScope] = {}
        if self._is_adopted:  # nothing is known of their data yet
            core.touched(self._changing(), trio.current_time())
        async with open_plain_nursery() as nursery:
            while True:
                self._follow(nursery, watched)
                with trio.move_on_at(core.wake_at()):
                    await self._feed.wait_changed()
                if self._feed.failure:
                    raise HookFailed(f"Template failed: {self._feed.failure}")
                news = self._feed.take_news()
                core.touched(self._using(news), trio.current_time())
                for number in core.to_render(trio.current_time()):
                    await self._render_again(number, core)
                act = core.act(trio.current_time())
                if act and self._is_up:
                    await self._carry_out(act)

    async def _adopt(self) -> bool:
        """The task runs since before this agent came: what lies there is what it was started with.

        False if something is missing; then all is rendered as if for the first time.
        """
        for one in self._prepared:
            if one.data is None:
                one.data = await _in_thread(read_known, FileRoot.of(self.task), one.destination)
        self._is_adopted = self._is_up = all(one.data is not None for one in self._prepared)
        return self._is_adopted

    def _changing(self) -> list[int]:
        """The templates that are rendered more than once."""
        return [number for number, one in enumerate(self._prepared) if not one.template.once]

    def _follow(self, nursery: trio.Nursery, watched: dict[Dependency, trio.CancelScope]) -> None:
        """Watch what templates depend on now, and nothing else."""
        wanted = {each for number in self._changing() for each in self._prepared[number].used}
        for dependency in sorted(watched.keys() - wanted):
            watched.pop(dependency).cancel("no template uses it any more")
            self._feed.forget(dependency)
        for dependency in sorted(wanted - watched.keys()):
            scope = watched[dependency] = trio.CancelScope()
            nursery.start_soon(self._watch_within, scope, dependency)

    async def _watch_within(self, scope: trio.CancelScope, dependency: Dependency) -> None:
        with scope:
            await self._feed.watch(dependency)

    def _using(self, news: set[Dependency]) -> list[int]:
        return [number for number in self._changing() if self._prepared[number].used & news]

    async def _render_again(self, number: int, core: TemplateWatchCore) -> None:
        one = self._prepared[number]
        before = one.data
        try:
            rendered = await self._render(one)
        except HookFailed as failed:
            self._tell(f"Template not rendered again: {failed.message}")
            return
        if rendered.is_complete and one.data != before and self._is_up:
            roll = self.task.parts.env.rng("template-splay").random()
            core.rendered(number, trio.current_time(), roll)

    # ---- acting ---------------------------------------------------------------------------------------------

    async def _carry_out(self, act: Act) -> None:
        if act.restart:
            self.task.actions.restart("Template with change_mode restart re-rendered")
            return
        for signal in act.signals:
            self.task.actions.signal(signal, "Template re-rendered")
        async with open_plain_nursery() as nursery:
            for script in act.scripts:
                nursery.start_soon(self._run_script, script)

    async def _run_script(self, script: ChangeScript) -> None:
        task_id = self.task.task_id
        if not task_id:
            return
        text = self.task.environment().text
        command = ExecCommand(argv=(text(script.command), *map(text, script.args)))
        problem = ""
        try:
            with trio.fail_after(max(1.0, script.timeout_s)):
                result = await self.task.driver.exec_task(task_id, command, script.timeout_s)
            if result.exit_code or result.signal:
                problem = f"exit code {result.exit_code}" if not result.signal else f"signal {result.signal}"
        except trio.TooSlowError:
            problem = f"not done after {script.timeout_s:g} s"
        except DriverError as error:
            problem = str(error)
        if not problem:
            self._tell(f"Template ran script {script.command}")
        elif script.fail_on_error:
            self.task.actions.kill(f"Template ran script {script.command}: {problem}", is_failure=True)
        else:
            self._tell(f"Template ran script {script.command}: {problem}")

    def _for_first_render(self) -> tuple[ChangeScript, ...]:
        scripts = (one.template.change_script for one in self._prepared if one.template.change_mode == "script")
        return tuple(script for script in scripts if script is not None and script.run_on_first_render)

    def _tell(self, text: str) -> None:
        self.task.actions.emit(TaskEvent(type=EVENT, message=text, display_message=text))

    def _rules(self, template: Template) -> TemplateRules:
        settings = self.task.parts.settings.template
        wait = template.wait
        min_s = settings.wait_min_s if wait is None or wait.min_s is None else wait.min_s
        max_s = settings.wait_max_s if wait is None or wait.max_s is None else wait.max_s
        return TemplateRules(
            change_mode=template.change_mode or "restart",
            signal=template.change_signal or "SIGHUP",
            script=template.change_script,
            wait_min_s=min_s,
            wait_max_s=max_s,
            splay_s=max(0.0, template.splay_s),
        )


class _Said:
    """What was last said to be missing, and when something may be said again."""

    def __init__(self, now: float) -> None:
        self.next_at = now + EVENT_EVERY_S
        self._text = ""

    def is_news(self, text: str, now: float) -> bool:
        self.next_at = now + EVENT_EVERY_S
        is_news, self._text = text != self._text, text
        return is_news


def _missing_text(missing: set[Dependency]) -> str:
    names = [str(one) for one in sorted(missing)]
    more = f", and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return f"Missing: {', '.join(names[:NAMED_MAX])}{more}"


def _mode(perms: str, name: str) -> int:
    try:
        mode = int(perms or "0644", 8)
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o7777:
        raise HookFailed(f"{name}: permissions {perms[:20]!r} are not octal", hint="such as 0644", event=EVENT)
    return mode


async def _in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Render or touch files off the event loop. A worker is not interrupted: renderings have limits of their own."""
    return await trio.to_thread.run_sync(partial(function, *arguments), limiter=RENDERING)

"""What a task's state machine is told, and what it asks for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from fedsched.client.journal_records import StoredNetwork, StoredResult
from fedsched.drivers.driver import ExitResult, TaskHandle
from fedsched.model.policies import RestartPolicy
from fedsched.model.task_state import TaskEvent


@dataclass(frozen=True, slots=True)
class Now:
    """The moment of an input, with all that a state machine cannot make up itself."""

    mono: float
    wall_ns: int
    chance: float = 0.0
    """In [0, 1)."""
    token: str = "00000000"
    """For the id of a start, if there is one."""


@dataclass(frozen=True, slots=True)
class TaskRules:
    """What the job says about how a task is run; an in-place update may change it."""

    policy: RestartPolicy = field(default_factory=RestartPolicy)
    on_success: bool = True
    """Whether an end without error is started again."""
    kill_timeout_s: float = 5.0
    kill_signal: str = ""
    shutdown_delay_s: float = 0.0
    is_system: bool = False
    """Tasks of system jobs belong to their node: no server has to be asked before one is started again."""


# -- inputs


@dataclass(frozen=True, slots=True)
class GateChanged:
    """Whether the task's stage may start now."""

    is_open: bool


@dataclass(frozen=True, slots=True)
class ContactMade:
    """Servers have confirmed what should run here."""


@dataclass(frozen=True, slots=True)
class PrestartDone:
    hooks: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    done: tuple[str, ...] = ()
    results: Mapping[str, StoredResult] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PrestartFailed:
    event: TaskEvent
    is_recoverable: bool = False


@dataclass(frozen=True, slots=True)
class WasStarted:
    handle: TaskHandle
    network: StoredNetwork | None = None


@dataclass(frozen=True, slots=True)
class StartFailed:
    reason: str
    is_recoverable: bool = False
    was_asked: bool = True
    """The driver was asked; something of the task may be there."""


@dataclass(frozen=True, slots=True)
class Recovered:
    handle: TaskHandle
    started_at_ns: int = 0


@dataclass(frozen=True, slots=True)
class RecoverFailed:
    reason: str
    is_unknown: bool = False
    """The driver is sure that there is nothing."""


@dataclass(frozen=True, slots=True)
class Exited:
    result: ExitResult


@dataclass(frozen=True, slots=True)
class ExitedHooksDone:
    """The hooks have seen the end."""


@dataclass(frozen=True, slots=True)
class KillAsked:
    cause: TaskEvent | None = None
    """Told before the kill itself (a sibling's failure)."""
    reason: str = ""
    is_failure: bool = False
    skips_delay: bool = False


@dataclass(frozen=True, slots=True)
class RestartAsked:
    reason: str
    is_failure: bool = False


@dataclass(frozen=True, slots=True)
class ReviveAsked:
    """All tasks of the allocation begin anew, dead ones too."""

    reason: str = ""


@dataclass(frozen=True, slots=True)
class PrekillDone:
    """The hooks know that it will be killed."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """The driver says that it is dead; the exit itself comes by another way."""

    task_id: str


@dataclass(frozen=True, slots=True)
class StopFailed:
    task_id: str
    reason: str


@dataclass(frozen=True, slots=True)
class Cleared:
    """Nothing is left of an earlier start."""


@dataclass(frozen=True, slots=True)
class ClearFailed:
    reason: str


@dataclass(frozen=True, slots=True)
class SetupFailed:
    """The allocation's own hooks failed: no task of it starts."""

    reason: str


@dataclass(frozen=True, slots=True)
class Emitted:
    event: TaskEvent


@dataclass(frozen=True, slots=True)
class RulesChanged:
    rules: TaskRules


@dataclass(frozen=True, slots=True)
class FinishAsked:
    """The allocation is over: what hooks keep for the task is given up."""


@dataclass(frozen=True, slots=True)
class StopHooksDone:
    pass


@dataclass(frozen=True, slots=True)
class Woken:
    """The time that `wake_at` named has come."""


TaskInput = (
    GateChanged
    | ContactMade
    | PrestartDone
    | PrestartFailed
    | WasStarted
    | StartFailed
    | Recovered
    | RecoverFailed
    | Exited
    | ExitedHooksDone
    | KillAsked
    | RestartAsked
    | ReviveAsked
    | PrekillDone
    | Stopped
    | StopFailed
    | Cleared
    | ClearFailed
    | SetupFailed
    | Emitted
    | RulesChanged
    | FinishAsked
    | StopHooksDone
    | Woken
)


# -- effects


@dataclass(frozen=True, slots=True)
class RunPrestart:
    """Run the prestart hooks; `is_recovered`: around a task that runs already."""

    is_recovered: bool = False


@dataclass(frozen=True, slots=True)
class CancelWork:
    """End what hooks or the driver are doing for a start that is no longer wanted."""


@dataclass(frozen=True, slots=True)
class Start:
    """Ask the driver, once the intent is on disk."""

    task_id: str


@dataclass(frozen=True, slots=True)
class Recover:
    handle: TaskHandle


@dataclass(frozen=True, slots=True)
class AwaitExit:
    handle: TaskHandle


@dataclass(frozen=True, slots=True)
class RunPoststart:
    pass


@dataclass(frozen=True, slots=True)
class RunPrekill:
    pass


@dataclass(frozen=True, slots=True)
class Stop:
    task_id: str
    timeout_s: float
    signal: str


@dataclass(frozen=True, slots=True)
class RunExited:
    result: ExitResult


@dataclass(frozen=True, slots=True)
class Clear:
    """Have the driver remove what is left of a start, once its end is on disk."""

    handle: TaskHandle
    is_dead: bool
    """It is known to have ended; otherwise it is looked for first."""


@dataclass(frozen=True, slots=True)
class RunStopHooks:
    pass


@dataclass(frozen=True, slots=True)
class Warn:
    """Something an operator should see in the log."""

    name: str
    reason: str


TaskEffect = (
    RunPrestart
    | CancelWork
    | Start
    | Recover
    | AwaitExit
    | RunPoststart
    | RunPrekill
    | Stop
    | RunExited
    | Clear
    | RunStopHooks
    | Warn
)

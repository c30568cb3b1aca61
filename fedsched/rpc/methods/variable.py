"""Variables: small maps of settings and secrets under a path."""

from __future__ import annotations

from typing import Annotated

from fedsched.model.declare import EMPTY, Record, StringMap
from fedsched.model.variable import Variable, VariableMetadata
from fedsched.rpc.methods.forms import reads, writes
from fedsched.rpc.methods.paging import ListReply, ListRequest


class VarRequest(Record):
    path: str


class VarPutRequest(Record):
    path: str
    items: StringMap = EMPTY
    check_index: Annotated[int | None, "Only if it was last changed at this index; 0: only if it is not there."] = None


class VarDeleteRequest(Record):
    path: str
    check_index: Annotated[int | None, "Only if it was last changed at this index."] = None


class VarReply(Record):
    variable: Variable


class VarWriteReply(Record):
    index: int = 0


class VarListReply(ListReply):
    variables: Annotated[tuple[VariableMetadata, ...], "Without their items."] = ()


class VarOfTaskRequest(Record):
    """A client asks for one of its tasks: what lies under `nomad/jobs` for its job, group and name, nothing else."""

    node_id: str
    secret_id: str = ""
    alloc_id: str = ""
    task: str = ""
    path: str = ""
    is_list: Annotated[bool, "All whose path begins with `path`, without their items."] = False


class VarOfTaskReply(Record):
    variable: Annotated[Variable | None, "None if there is none."] = None
    listed: tuple[VariableMetadata, ...] = ()


VAR_PUT = writes("Var.Put", VarPutRequest, VarReply, "variables:write", "Store a variable.")
VAR_GET = reads("Var.Get", VarRequest, VarReply, "variables:read", "One variable, with its items.")
VAR_LIST = reads("Var.List", ListRequest, VarListReply, "variables:list", "Variables by path, without their items.")
VAR_DELETE = writes("Var.Delete", VarDeleteRequest, VarWriteReply, "variables:destroy", "Forget a variable.")
VAR_OF_TASK = reads(
    "Var.OfTask", VarOfTaskRequest, VarOfTaskReply, "", "What a task may see of the variables, asked by its client."
)

"""Records of access control: policies, tokens, roles, and how logins map to them.

What a policy's rules mean belongs to the `acl` package; here they are text.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from fedsched.model.record import (
    EMPTY,
    FreeForm,
    Index,
    InJson,
    Record,
    Seconds,
    TimeText,
    Unit,
    UpdateClass,
)


class TokenType(StrEnum):
    CLIENT = "client"
    MANAGEMENT = "management"


class JobACL(Record):
    """The workload that a policy applies to, if it is not for tokens."""

    namespace: str = ""
    job_id: str = ""
    group: str = ""
    task: str = ""


class ACLPolicyStub(Record):
    """A policy as lists show it."""

    name: str
    description: str = ""
    job_acl: JobACL | None = None
    hash: bytes = b""
    create_index: Index = 0
    modify_index: Index = 0


class ACLPolicy(Record):
    """A named set of rules."""

    name: str
    description: str = ""
    rules: str = ""
    rules_json: Annotated[FreeForm | None, "The rules parsed, for user interfaces."] = None
    job_acl: JobACL | None = None
    hash: bytes = b""
    create_index: Index = 0
    modify_index: Index = 0

    def stub(self) -> ACLPolicyStub:
        return ACLPolicyStub(**{name: getattr(self, name) for name in ACLPolicyStub.__struct_fields__})


class ACLTokenRoleLink(Record):
    """A role that a token has."""

    id: str = ""
    name: str = ""


class ACLTokenStub(Record):
    """A token as lists show it: without its secret."""

    accessor_id: str
    name: str = ""
    type: str = TokenType.CLIENT.value
    policies: tuple[str, ...] = ()
    roles: tuple[ACLTokenRoleLink, ...] = ()
    global_: bool = False
    hash: bytes = b""
    create_time_ns: Annotated[int, Unit.TIME_TEXT_YEAR_1, UpdateClass.BOOKKEEPING] = 0
    expiration_time_ns: TimeText = 0
    create_index: Index = 0
    modify_index: Index = 0


class ACLToken(Record):
    """A token. Its secret is shown once, at creation; the state keeps only `secret_hash`."""

    accessor_id: str
    secret_id: Annotated[str, "Filled only in the answer to the creation."] = ""
    secret_hash: Annotated[bytes, InJson.NEVER] = b""
    name: str = ""
    type: str = TokenType.CLIENT.value
    policies: tuple[str, ...] = ()
    roles: tuple[ACLTokenRoleLink, ...] = ()
    global_: Annotated[bool, "Whether it holds in every region."] = False
    hash: bytes = b""
    create_time_ns: Annotated[int, Unit.TIME_TEXT_YEAR_1, UpdateClass.BOOKKEEPING] = 0
    expiration_time_ns: TimeText = 0
    expiration_ttl_s: Annotated[float, Unit.DURATION_TEXT_OR_EMPTY] = 0.0
    create_index: Index = 0
    modify_index: Index = 0

    @property
    def is_management(self) -> bool:
        return self.type == TokenType.MANAGEMENT

    def is_expired(self, now_ns: int) -> bool:
        return 0 < self.expiration_time_ns <= now_ns

    def stub(self) -> ACLTokenStub:
        return ACLTokenStub(**{name: getattr(self, name) for name in ACLTokenStub.__struct_fields__})


class ACLRolePolicyLink(Record):
    """A policy that a role brings."""

    name: str = ""


class ACLRole(Record):
    """A named set of policies."""

    id: str
    name: str = ""
    description: str = ""
    policies: tuple[ACLRolePolicyLink, ...] = ()
    hash: bytes = b""
    create_index: Index = 0
    modify_index: Index = 0


class ACLAuthMethod(Record):
    """A way to log in with a foreign token; `config` is the method's own and kept as plain data."""

    name: str
    type: Annotated[str, "`OIDC` or `JWT`."] = ""
    token_locality: Annotated[str, "`local` or `global`."] = ""
    token_name_format: str = ""
    max_token_ttl_s: Seconds = 0.0
    default: bool = False
    config: FreeForm = EMPTY
    hash: bytes = b""
    create_time_ns: TimeText = 0
    modify_time_ns: TimeText = 0
    create_index: Index = 0
    modify_index: Index = 0


class ACLBindingRule(Record):
    """Which role or policy a login gets, by its claims."""

    id: str
    description: str = ""
    auth_method: str = ""
    selector: str = ""
    bind_type: Annotated[str, "`role`, `policy` or `management`."] = ""
    bind_name: str = ""
    hash: bytes = b""
    create_time_ns: TimeText = 0
    modify_time_ns: TimeText = 0
    create_index: Index = 0
    modify_index: Index = 0


class OneTimeToken(Record):
    """A secret that can be exchanged once for the token behind it."""

    one_time_secret_id: str = ""
    accessor_id: str = ""
    expires_at_ns: TimeText = 0
    create_index: Index = 0
    modify_index: Index = 0

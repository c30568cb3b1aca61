"""A namespace: a set of jobs with its own names and rules."""

from __future__ import annotations

from fedsched.model.record import EMPTY, FreeForm, Index, Record, StringMap


class NamespaceCapabilities(Record):
    """What jobs of a namespace may use; empty lists allow all."""

    enabled_task_drivers: tuple[str, ...] = ()
    disabled_task_drivers: tuple[str, ...] = ()
    enabled_network_modes: tuple[str, ...] = ()
    disabled_network_modes: tuple[str, ...] = ()


class NamespaceNodePools(Record):
    """Which node pools jobs of a namespace get and may ask for."""

    default: str = ""
    allowed: tuple[str, ...] = ()
    denied: tuple[str, ...] = ()


class Namespace(Record):
    """A set of jobs. The Vault and Consul settings are kept as plain data."""

    name: str
    description: str = ""
    quota: str = ""
    capabilities: NamespaceCapabilities | None = None
    node_pool_configuration: NamespaceNodePools | None = None
    vault_configuration: FreeForm | None = None
    consul_configuration: FreeForm | None = None
    meta: StringMap = EMPTY
    hash: bytes = b""
    create_index: Index = 0
    modify_index: Index = 0
    required_extra_claims: StringMap = EMPTY
    optional_extra_claims: StringMap = EMPTY

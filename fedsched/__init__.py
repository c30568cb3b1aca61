"""fedsched: a workload orchestrator federated over regions."""

__version__ = "0.1.0"

"""Keeping a task to itself: its own view of files, processes and IPC, few rights, few system calls.

Two halves that never meet in one process. The agent decides (`plan`, `capabilities`, `users`, `seccomp`) and writes its
decision down as plain data; a task's supervisor carries it out (`enter`, `mounts`, `kernel`), and loads nothing beside
`os`, `ctypes` and `struct` for it, because every task has a supervisor.
"""

"""The halves of standard modules that are written in C, without the Python around them.

`signal`, `socket`, `json` and `ctypes` import `enum`, `re`, `selectors` and more, a megabyte that every fork of the
warm process would carry. What is used of them here has been the same in CPython for many versions; a test names each.

Light: this is part of every supervisor.
"""

from __future__ import annotations

TYPE_CHECKING = False  # `typing` alone would double what a supervisor imports
if TYPE_CHECKING:
    from collections.abc import Callable
    from signal import (
        SIG_DFL,
        SIG_IGN,
        SIG_SETMASK,
        SIGCHLD,
        SIGHUP,
        SIGINT,
        SIGKILL,
        SIGPIPE,
        SIGTERM,
        SIGXFSZ,
        pthread_sigmask,
        set_wakeup_fd,
        signal,
    )
    from socket import (
        AF_UNIX,
        CMSG_LEN,
        MSG_CMSG_CLOEXEC,
        SCM_RIGHTS,
        SO_PEERCRED,
        SOCK_STREAM,
        SOL_SOCKET,
        socket,
        socketpair,
    )
    from typing import Any

    def prctl(option: int, value: int) -> None: ...

    scan: Callable[[str, int], tuple[Any, int]]
    encode: Callable[[object, int], tuple[str, ...]]
else:
    from _ctypes import call_function, dlopen, dlsym
    from _json import encode_basestring_ascii, make_encoder, make_scanner
    from _signal import (
        SIG_DFL,
        SIG_IGN,
        SIG_SETMASK,
        SIGCHLD,
        SIGHUP,
        SIGINT,
        SIGKILL,
        SIGPIPE,
        SIGTERM,
        SIGXFSZ,
        pthread_sigmask,
        set_wakeup_fd,
        signal,
    )
    from _socket import (
        AF_UNIX,
        CMSG_LEN,
        MSG_CMSG_CLOEXEC,
        SCM_RIGHTS,
        SO_PEERCRED,
        SOCK_STREAM,
        SOL_SOCKET,
        socket,
        socketpair,
    )

    _PRCTL = dlsym(dlopen(None, 0), "prctl")

    def prctl(option, value):
        call_function(_PRCTL, (option, value, 0, 0, 0))

    class _Plain:
        """What the JSON scanner asks about: nothing out of the ordinary."""

        strict = True
        object_hook = object_pairs_hook = None
        parse_float = float
        parse_int = int

        @staticmethod
        def parse_constant(name):
            raise ValueError(f"{name} is no number")

    scan = make_scanner(_Plain)
    encode = make_encoder(None, None, encode_basestring_ascii, None, ":", ",", False, False, False)

__all__ = [
    "AF_UNIX",
    "CMSG_LEN",
    "MSG_CMSG_CLOEXEC",
    "SCM_RIGHTS",
    "SIGCHLD",
    "SIGHUP",
    "SIGINT",
    "SIGKILL",
    "SIGPIPE",
    "SIGTERM",
    "SIGXFSZ",
    "SIG_DFL",
    "SIG_IGN",
    "SIG_SETMASK",
    "SOCK_STREAM",
    "SOL_SOCKET",
    "SO_PEERCRED",
    "encode",
    "prctl",
    "pthread_sigmask",
    "scan",
    "set_wakeup_fd",
    "signal",
    "socket",
    "socketpair",
]

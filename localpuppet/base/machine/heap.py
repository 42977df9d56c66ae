"""The heap of this process, from which the C library lends memory.

glibc gives each thread another heap, up to eight a core. Other threads cannot use what one thread
freed, so a process whose threads read a database keeps the same memory several times.
"""

import ctypes

_M_ARENA_MAX = -8  # of malloc.h


def share_heap() -> None:
    """Have all threads use one heap; call this before the first thread starts.

    A C library without this option, such as musl, does so anyway.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_M_ARENA_MAX, 1)

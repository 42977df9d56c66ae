"""The heap of this process, from which the C library lends memory.

glibc gives each thread a heap of its own, up to eight a core. Memory that one thread freed is then
of no use to the others, and a process whose threads read a database keeps it several times.
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

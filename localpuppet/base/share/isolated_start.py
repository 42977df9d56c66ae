"""Starts a program without the system calls that reach around its namespaces and limits.

    isolated_start.py [CGROUP_PROCS…] -- COMMAND…

localpuppet/base/machine/isolation.py runs it, without site-packages. It joins the cgroups, denies
the system calls, and executes the command.
"""

import ctypes
import os
import signal
import sys
from typing import NoReturn

# Keyrings and sockets reach the job, other machines and their host. Memory that no process has
# mapped is in no sum of what processes use. A tracer changes other processes.
DENIED = (
    *("add_key", "keyctl", "request_key", "socket", "socketpair", "setns"),
    *("memfd_create", "memfd_secret", "shmget", "shmat", "msgget", "semget", "mq_open", "vmsplice"),
    *("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp"),
    *("bpf", "io_uring_setup", "perf_event_open", "userfaultfd"),
)
_MAP_SHARED_ANONYMOUS = 0x21
_ALLOW, _REFUSE, _MASKED_EQUAL = 0x7FFF0000, 0x00050001, 7  # of libseccomp; refuse: EPERM


class _Comparison(ctypes.Structure):
    """`struct scmp_arg_cmp` of libseccomp."""

    _fields_ = (
        ("arg", ctypes.c_uint),
        ("op", ctypes.c_int),
        ("datum_a", ctypes.c_uint64),
        ("datum_b", ctypes.c_uint64),
    )


def deny() -> None:
    """Deny the system calls to this process and all that it starts; set no-new-privs."""
    library = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    library.seccomp_init.restype = ctypes.c_void_p
    rules = ctypes.c_void_p(library.seccomp_init(_ALLOW))
    for name in DENIED:  # one that this machine does not have is refused, and not needed
        number = library.seccomp_syscall_resolve_name(name.encode())
        library.seccomp_rule_add_array(rules, _REFUSE, number, 0, None)
    shared = _Comparison(3, _MASKED_EQUAL, _MAP_SHARED_ANONYMOUS, _MAP_SHARED_ANONYMOUS)
    for name in ("mmap", "mmap2"):
        number = library.seccomp_syscall_resolve_name(name.encode())
        library.seccomp_rule_add_array(rules, _REFUSE, number, 1, ctypes.byref(shared))
    if code := library.seccomp_load(rules):
        raise OSError(-code, os.strerror(-code))


def main(words: list[str]) -> NoReturn:
    """Run the command."""
    end = words.index("--")
    for group in words[:end]:
        with open(group, "w", encoding="ascii") as file:  # noqa: PTH123 - pathlib takes 10 ms
            file.write("0")
    try:
        deny()
    except OSError as error:
        sys.exit(f"no filter of system calls: {error} (apt-get install libseccomp2)")
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them
        signal.signal(number, signal.SIG_DFL)
    os.execv(words[end + 1], words[end + 1 :])  # noqa: S606 - as is meant


if __name__ == "__main__":
    main(sys.argv[1:])

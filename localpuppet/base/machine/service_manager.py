"""Notify the service manager (ready, alive, stopping), and take over its sockets.

sd_notify(3): datagrams of `KEY=VALUE` lines to the socket in NOTIFY_SOCKET. sd_listen_fds(3):
LISTEN_FDS open descriptors from 3 on, for the process LISTEN_PID. Without a service manager, every
call does nothing.
"""

import math
import os
import socket
import time
from collections.abc import MutableMapping
from contextlib import suppress

from localpuppet.base.errors import InvalidInputError

_FIRST = 3  # SD_LISTEN_FDS_START


class ServiceManager:
    """Reports the state of this service; `watchdog` is the time between two signs of life."""

    def __init__(self, address: str, watchdog: float) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._interval = watchdog / 3
        self._notified_at = 0.0

    @classmethod
    def from_environment(
        cls, environment: MutableMapping[str, str] | None = None
    ) -> "ServiceManager":
        """Return the service manager that started this process, and clear its variables.

        A child that inherited them could send messages in the name of this process.
        """
        env = os.environ if environment is None else environment
        address = env.pop("NOTIFY_SOCKET", "")
        microseconds = env.pop("WATCHDOG_USEC", "")
        for_us = env.pop("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        watched = microseconds.isdecimal() and for_us
        return cls(address, int(microseconds) / 1e6 if watched else 0.0)

    @property
    def pulse(self) -> float:
        """Return the maximum number of seconds between two signs of life; infinity for none."""
        return self._interval or math.inf

    def ready(self, status: str) -> None:
        """Report that the service is up."""
        self._say(f"READY=1\nSTATUS={status}")

    def stopping(self) -> None:
        self._say("STOPPING=1")

    def alive(self) -> None:
        """Send a sign of life if one is due."""
        now = time.monotonic()
        if self._interval and now - self._notified_at >= self._interval:
            self._notified_at = now
            self._say("WATCHDOG=1")

    def _say(self, text: str) -> None:
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as peer:
            peer.settimeout(1)
            # A missing manager must not end the service. A busy one (it reloads, its queue is full)
            # gets the next sign of life.
            with suppress(OSError):
                peer.sendto(text.encode(), self._address)


def given_socket() -> socket.socket | None:
    """Return the listening socket from the service manager; `None` if it passed none.

    The variables are cleared: children must not see them.

    Raises:
        InvalidInputError: The manager passed something else than one listening UNIX socket.
    """
    for_us = os.environ.pop("LISTEN_PID", "") == str(os.getpid())
    count = os.environ.pop("LISTEN_FDS", "")
    os.environ.pop("LISTEN_FDNAMES", None)
    if not for_us:
        return None
    try:
        if count != "1":
            raise InvalidInputError(f"{count or 'no'} sockets were given", where="LISTEN_FDS")
        given = socket.socket(fileno=_FIRST)
    except OSError as error:
        raise InvalidInputError(
            f"descriptor {_FIRST} is not a socket: {error.strerror}", where="LISTEN_FDS"
        ) from error
    given.set_inheritable(False)
    listens = given.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    if given.family != socket.AF_UNIX or given.type != socket.SOCK_STREAM or not listens:
        raise InvalidInputError(
            f"descriptor {_FIRST} is not a listening UNIX socket", where="LISTEN_FDS"
        )
    return given

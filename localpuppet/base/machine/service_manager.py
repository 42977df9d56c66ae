"""The service manager's side of a service: ready, alive, stopping, and sockets that it made.

Owns: the protocols. sd_notify(3) is a datagram of `KEY=VALUE` lines to the socket in NOTIFY_SOCKET;
sd_listen_fds(3) is open descriptors from 3 on, LISTEN_FDS of them, for the process LISTEN_PID.
Without a service manager every call does nothing.
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
    """Tells the service manager how we are.

    Args:
        address: Its socket; empty where there is none.
        watchdog: Seconds between two signs of life that it allows; 0 where it does not watch.
    """

    def __init__(self, address: str, watchdog: float) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._interval = watchdog / 3
        self._told = 0.0

    @classmethod
    def from_environment(
        cls, environment: MutableMapping[str, str] | None = None
    ) -> "ServiceManager":
        """Return the one that started us; what it said is taken out of the environment.

        A child that kept it could speak in our name.
        """
        env = os.environ if environment is None else environment
        address = env.pop("NOTIFY_SOCKET", "")
        microseconds = env.pop("WATCHDOG_USEC", "")
        for_us = env.pop("WATCHDOG_PID", str(os.getpid())) == str(os.getpid())
        watched = microseconds.isdecimal() and for_us
        return cls(address, int(microseconds) / 1e6 if watched else 0.0)

    @property
    def pulse(self) -> float:
        """Return in how many seconds, at most, it wants to hear of us; infinity for never."""
        return self._interval or math.inf

    def ready(self, status: str) -> None:
        """Say that we are up."""
        self._say(f"READY=1\nSTATUS={status}")

    def stopping(self) -> None:
        """Say that we are going."""
        self._say("STOPPING=1")

    def alive(self) -> None:
        """Say that the work goes on, as often as it is asked for."""
        now = time.monotonic()
        if self._interval and now - self._told >= self._interval:
            self._told = now
            self._say("WATCHDOG=1")

    def _say(self, text: str) -> None:
        if not self._address:
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as peer:
            peer.settimeout(1)
            # A service must not end because nobody listens; a manager that was only too busy (it
            # reloads, its queue is full) has to hear the next sign of life.
            with suppress(OSError):
                peer.sendto(text.encode(), self._address)


def given_socket(environment: MutableMapping[str, str] | None = None) -> socket.socket | None:
    """Return the socket that the service manager listens on for us; `None` where it does not.

    What it said is taken out of the environment: it is not for our children.

    Raises:
        InvalidInputError: It gave something else than one listening UNIX socket.
    """
    env = os.environ if environment is None else environment
    for_us = env.pop("LISTEN_PID", "") == str(os.getpid())
    count = env.pop("LISTEN_FDS", "")
    env.pop("LISTEN_FDNAMES", None)
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

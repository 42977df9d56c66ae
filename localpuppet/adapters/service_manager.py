"""The service manager's side of a service: ready, alive, stopping (sd_notify(3)).

Owns: the protocol, which is a datagram of `KEY=VALUE` lines to the socket in NOTIFY_SOCKET. Without
a service manager every call does nothing.
"""

import os
import socket
import time
from collections.abc import MutableMapping


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
        watched = microseconds.isdigit() and for_us
        return cls(address, int(microseconds) / 1e6 if watched else 0.0)

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
            try:
                peer.sendto(text.encode(), self._address)
            except OSError:
                # Nobody to tell: it will find out, and a service must not end because of that.
                self._address = ""

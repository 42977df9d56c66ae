"""One connection to NATS, reopened when it is lost; requests with deadlines.

nats-py's own reconnecting is off: it hides an outage from waiting callers, delays their messages,
and is slow. A lost connection ends all waiting calls at once (`bus.nats.link`); the next call opens
a new one, and tries all servers until its deadline.
"""

import asyncio
import logging
import ssl
import time
from collections.abc import Mapping

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.machine.anchors import read_anchor, tls_context
from localpuppet.fleet.bus.deadline import Backoff, end_of_step
from localpuppet.fleet.bus.nats.link import Msg, NatsError, NatsLink, NoResponderError, reason
from localpuppet.fleet.bus.servers import Servers
from localpuppet.fleet.bus.tls_failure import lost_connection, tls_failure

# Errors of nats-py while connecting: it trusts the types in the server's first message.
_RUBBISH = (NatsError, OSError, ValueError, TypeError, AttributeError, RecursionError)


def _worth_saying(record: logging.LogRecord) -> bool:
    """Drop a log line of asyncio that nats-py's TLS upgrade always causes."""
    return not record.getMessage().startswith("returning true from eof_received()")


class NatsConnection:
    """The connection of one client.

    Args:
        servers: The servers and the client's identity. If a URL or a CA requires TLS, a server
            without it is rejected; otherwise the server decides.
        timeout: The deadline of each call in seconds.
        password: The password of `servers.user`.
        inbox: The prefix of the subjects for answers.
    """

    def __init__(
        self,
        servers: Servers,
        *,
        timeout: float,
        password: str | None = None,
        inbox: str = "_INBOX",
    ) -> None:
        self.api = servers.api
        self.timeout = timeout
        logging.getLogger("asyncio").addFilter(_worth_saying)
        self._servers = servers
        self._must_be_tls = servers.tls or servers.ca is not None
        self._tls: ssl.SSLContext | None = None
        if self._must_be_tls:
            self._tls = tls_context(servers.ca, servers.certificate, servers.key)
        self._password = password
        self._inbox = inbox
        self._link: NatsLink | None = None
        self._connecting = asyncio.Lock()
        self._closed = False
        self._last_error = "no answer"  # why the last attempt to connect failed

    @property
    def where(self) -> str:
        """Return the servers, for messages."""
        return ", ".join(endpoint.url for endpoint in self._servers.endpoints)

    @property
    def version(self) -> str:
        """Return the version of the connected server."""
        return "" if self._link is None else self._link.version

    async def link(self) -> NatsLink:
        """Return a live connection; connect if necessary."""
        current = self._link
        if current is not None and current.alive and not self._closed:
            return current  # the usual case, without waiting for the lock
        # The deadline includes the wait for other callers' attempts.
        deadline = end_of_step(self.timeout)
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                await self._connecting.acquire()
        except TimeoutError as error:
            raise self._unreachable() from error
        try:
            self._check_open()
            if self._link is None or not self._link.alive:
                if self._link is not None:
                    await self._link.close()
                    self._link = None
                if time.monotonic() >= deadline:
                    raise self._unreachable()
                link = await self._connect(deadline)
                self._link = link  # `close` may run before or after this line
                if self._closed:
                    await link.close()
                self._check_open()
            return self._link
        finally:
            self._connecting.release()

    def _check_open(self) -> None:
        if self._closed:
            raise UnavailableError("is closed", where="bus nats")

    def _unreachable(self) -> UnavailableError:
        hint = "check that NATS is running and 'buses.nats.servers' is right"
        return self.problem(f"cannot be reached: {self._last_error}", hint)

    async def _connect(self, deadline: float) -> NatsLink:
        options = self._options()
        endpoints = self._servers.endpoints
        backoff = Backoff()
        refused = False  # an attempt of this call has failed, and had its time
        while True:
            for left, endpoint in zip(range(len(endpoints), 0, -1), endpoints, strict=True):
                link = NatsLink(
                    where=self.where, timeout=self.timeout, must_be_tls=self._must_be_tls
                )
                try:
                    async with asyncio.timeout(max(0.05, (deadline - time.monotonic()) / left)):
                        await link.connect(endpoint.url, options, inbox=self._inbox)
                except _RUBBISH as error:
                    text = tls_failure(error, self._servers) or link.error_text or reason(error)
                    if self._must_be_tls and "onnection lost" in text:
                        text = lost_connection(text, self._servers)
                    await link.close()
                    if "authorization" in text.lower():
                        hint = "check the credentials of the bus"
                        raise self.problem(text, hint) from error
                    if not (refused and time.monotonic() >= deadline):
                        self._last_error, refused = text, True
                except BaseException:  # the caller is gone: the link would stay open for ever
                    await link.close()
                    raise
                else:
                    return link
            pause = backoff.pause()
            if time.monotonic() + pause >= deadline:
                raise self._unreachable()
            await asyncio.sleep(pause)

    def _options(self) -> dict[str, object]:
        """Return the client's identity in nats-py's terms; files are read for each connection."""
        options: dict[str, object] = {} if self._tls is None else {"tls": self._tls}
        if self._servers.user is not None:
            options |= {"user": self._servers.user, "password": self._password or ""}
        file = self._servers.credentials
        if file is not None:
            try:
                text = read_anchor(file).decode("ascii")
            except UnicodeDecodeError as error:
                raise InvalidInputError("is not text", where=str(file)) from error
            kind = "user_credentials" if "BEGIN NATS USER JWT" in text else "nkeys_seed"
            options[kind] = str(file)
        return options

    async def request(
        self, subject: str, payload: bytes = b"", *, headers: Mapping[str, str] | None = None
    ) -> Msg:
        """Send a message; return the answer.

        Without a responder, it sends the message again: a cluster may be electing a leader.
        """
        deadline = end_of_step(self.timeout)
        backoff = Backoff()
        while True:
            try:
                return await (await self.link()).request(subject, payload, headers=headers)
            except NoResponderError:
                pause = backoff.pause()
                if time.monotonic() + pause >= deadline:
                    raise
            await asyncio.sleep(pause)

    async def close(self) -> None:
        """Close the connection; every later call raises."""
        self._closed = True
        if self._link is not None:
            await self._link.close()

    def problem(self, what: str, hint: str = "") -> UnavailableError:
        """Return an error about these servers."""
        return UnavailableError(what, where=self.where, hint=hint)

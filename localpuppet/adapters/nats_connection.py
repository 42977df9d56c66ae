"""One connection to NATS, remade when it is lost: requests with deadlines, errors as ours.

Owns: when to connect. nats-py's own reconnecting is off: it hides an outage from those who wait,
holds back what they publish, and takes its time. A connection that is lost ends all that wait on it
at once, and the next call makes a new one, trying all servers until its deadline.

A dead peer that keeps the connection open is found by pings within the timeout. A server that does
not speak TLS where it must is left before it is told who we are. What a user may not do is an error
at once: the server says so beside the connection, and the request itself gets no answer.
"""

import asyncio
import json
import logging
import re
import ssl
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localpuppet.errors import InvalidInputError, UnavailableError
from localpuppet.model.text import one_line, url_without_secrets

try:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription
    from nats.errors import Error as NatsError
    from nats.errors import NoRespondersError, SlowConsumerError

    from localpuppet.adapters.nats_client import TlsClient, TolerantClient
except ModuleNotFoundError as error:
    raise InvalidInputError(
        f"needs the Python package {error.name}",
        where="bus nats",
        hint="pip install 'localpuppet[nats]'",
    ) from error

__all__ = ["API", "Client", "Credentials", "Msg", "NatsConnection", "StalledError", "Subscription"]

# Seconds between two rounds over servers that are away.
RETRY = 0.1
API = "$JS.API"
_REFUSED = re.compile('permissions violation for publish to "([^"]*)"', re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """Who we are; all may be missing.

    Attributes:
        file: A `.creds` file (JWT and seed), or one with an nkey seed alone.
        user: A user's name.
        password: Its password.
        tls: For servers that speak TLS; holds our certificate if there is one.
    """

    file: Path | None = None
    user: str | None = None
    password: str | None = None
    tls: ssl.SSLContext | None = None

    def options(self) -> dict[str, object]:
        """Return what nats-py calls them.

        Raises:
            InvalidInputError: The file cannot be read.
        """
        options: dict[str, object] = {}
        if self.file is not None:
            try:
                text = self.file.read_text("ascii")
            except (OSError, UnicodeDecodeError) as error:
                reason = getattr(error, "strerror", None) or "it is not text"
                raise InvalidInputError(
                    f"cannot be read: {reason}", where=str(self.file)
                ) from error
            kind = "user_credentials" if "BEGIN NATS USER JWT" in text else "nkeys_seed"
            options[kind] = str(self.file)
        if self.user is not None:
            options |= {"user": self.user, "password": self.password or ""}
        if self.tls is not None:
            options["tls"] = self.tls
        return options


class StalledError(Exception):
    """A consumer promised more than it sends: what it counted was replaced or removed meanwhile."""


def _worth_saying(record: logging.LogRecord) -> bool:
    """Drop asyncio's note about how nats-py came to its TLS: it means nothing, and comes always."""
    return not record.getMessage().startswith("returning true from eof_received()")


class NatsConnection:
    """The connection of one client.

    Args:
        servers: URLs, tried in turn.
        credentials: Who we are.
        inbox: The prefix of the subjects that answers come to.
        timeout: The deadline of each call in seconds.
        api: The prefix of JetStream's API.
        must_be_tls: Whether a server without TLS is refused; else TLS is up to the server.
    """

    def __init__(
        self,
        servers: Sequence[str],
        *,
        credentials: Credentials,
        inbox: str,
        timeout: float,
        api: str = API,
        must_be_tls: bool = False,
    ) -> None:
        self.api = api
        self._must_be_tls = must_be_tls
        logging.getLogger("asyncio").addFilter(_worth_saying)
        self._refusals: dict[str, set[asyncio.Future[Any]]] = {}
        self._servers = list(servers)
        self._credentials = credentials
        self._inbox = inbox
        self.timeout = timeout
        self._client: Client | None = None
        self._connecting = asyncio.Lock()
        self._closed = False
        self._said = ""
        self._gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Called when a connection is lost, and when the library threw a message away.
        self.listeners: set[Callable[[], None]] = set()

    @property
    def where(self) -> str:
        """Return the servers: for messages."""
        return ", ".join(url_without_secrets(url) for url in self._servers)

    @property
    def version(self) -> str:
        """Return the version of the server that we are connected to."""
        info = {} if self._client is None else self._client._server_info
        return one_line(str(info.get("version", "")))

    async def client(self) -> Client:
        """Return a live connection, a new one if there is none.

        Raises:
            UnavailableError: No server can be reached within the deadline, or they refuse us.
        """
        found = self._client
        if found is not None and found.is_connected and not self._closed:
            return found  # the usual case, without a turn in the queue for the lock
        async with self._connecting:
            if self._closed:
                raise UnavailableError("is closed", where="bus nats")
            if self._client is None or not self._client.is_connected:
                if self._client is not None:
                    await self._end(self._client)
                    self._client = None
                self._client = await self._connect()
            return self._client

    async def _connect(self) -> Client:
        deadline = time.monotonic() + self.timeout
        options = self._credentials.options()
        problem = "no answer"
        while True:
            for left, url in zip(range(len(self._servers), 0, -1), self._servers, strict=True):
                share = max(0.05, (deadline - time.monotonic()) / left)
                client = TlsClient() if self._must_be_tls else TolerantClient()
                gone = asyncio.get_running_loop().create_future()
                self._said = ""
                try:
                    async with asyncio.timeout(share):
                        await client.connect(
                            url,
                            **options,  # type: ignore[arg-type]
                            allow_reconnect=False,
                            reconnect_time_wait=RETRY,  # type: ignore[arg-type]
                            connect_timeout=share,  # type: ignore[arg-type]
                            ping_interval=self.timeout / 3,  # type: ignore[arg-type]
                            max_outstanding_pings=1,
                            inbox_prefix=self._inbox,
                            name="localpuppet",
                            error_cb=self._on_error,
                            closed_cb=self._on_closed_of(gone),
                        )
                # The library believes the types in what a server says first.
                except (NatsError, OSError, ValueError, TypeError, AttributeError) as error:
                    problem = self._said or _reason(error)
                    await self._end(client)
                    if "authorization" in problem.lower():
                        raise self.problem(problem, "see the credentials of the bus") from error
                else:
                    self._gone = gone
                    return client
            if time.monotonic() + RETRY >= deadline:
                raise self.problem(f"cannot be reached: {problem}")
            await asyncio.sleep(RETRY)

    async def request(
        self, subject: str, payload: bytes = b"", *, headers: Mapping[str, str] | None = None
    ) -> Msg:
        """Send a message; return the answer.

        Raises:
            UnavailableError: Nobody answers within the deadline.
        """
        client = await self.client()
        answer = asyncio.ensure_future(
            client.request(
                subject, payload, timeout=self.timeout, headers=dict(headers) if headers else None
            )
        )
        return await self._waited(answer, subject)

    async def _waited(self, answer: "asyncio.Future[Msg]", subject: str) -> Msg:
        gone = self._gone
        refusal: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        refusals = self._refusals.setdefault(subject.lower(), set())
        refusals.add(refusal)
        try:
            # The library would let a request wait for what a lost connection, or a server that
            # refuses it, cannot bring.
            ends: set[asyncio.Future[Any]] = {answer, gone, refusal}
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            if refusal.done():
                raise self.problem(refusal.result(), _hint(refusal.result()))
            # It cancels what waits for an answer when it notices the loss itself.
            if not answer.done() or answer.cancelled():
                raise self.problem("the connection was lost")
            return answer.result()
        except NoRespondersError as error:
            hint = "is JetStream on, and may this user use it?"
            raise self.problem(f"nobody answers {subject}", hint) from error
        except (NatsError, OSError, TimeoutError) as error:
            raise self.problem(f"no answer within {self.timeout:g} s") from error
        finally:
            answer.cancel()
            refusal.cancel()
            refusals.discard(refusal)
            if not refusals:
                self._refusals.pop(subject.lower(), None)

    async def batches(
        self, subject: str, body: Mapping[str, object], *, size: int
    ) -> AsyncGenerator[Msg, None]:
        """Ask a pull consumer for batches, until it has no more; yield their messages.

        Raises:
            UnavailableError: The connection is lost, or not everything came within the deadline.
            StalledError: Nothing came for a quarter of that.
        """
        client = await self.client()
        inbox = client.new_inbox()
        queue: asyncio.Queue[Msg] = asyncio.Queue()
        subscription = await self.subscribe(f"{inbox}.*", queue.put)
        deadline = time.monotonic() + self.timeout
        number = 0
        more = True
        try:
            while more:
                if time.monotonic() > deadline:
                    raise self.problem(f"did not send everything within {self.timeout:g} s")
                # A subject for each batch: an end that comes late is not taken for the next one's.
                number += 1
                answer = f"{inbox}.{number}"
                await client.publish(subject, json.dumps(body).encode(), reply=answer)
                count = 0
                while more and count < size:
                    message = await self._taken(queue)
                    # By its subject: what is stored may have a header of that name.
                    if not message.subject.startswith(inbox):
                        count += 1
                        yield message
                        more = message.metadata.num_pending > 0
                    elif message.subject == answer:
                        # "No messages"; others end a batch, and no more.
                        more = (message.headers or {}).get("Status") != "404"
                        break
        except (NatsError, OSError) as error:
            raise self.problem(f"the connection was lost: {_reason(error)}") from error
        finally:
            await self.unsubscribe(subscription)

    async def _taken(self, queue: "asyncio.Queue[Msg]") -> Msg:
        if not queue.empty():
            return queue.get_nowait()
        taking = asyncio.ensure_future(queue.get())
        try:
            both: set[asyncio.Future[Any]] = {taking, self._gone}
            await asyncio.wait(both, timeout=self.timeout / 4, return_when=asyncio.FIRST_COMPLETED)
            if not taking.done():
                if not self._gone.done():
                    raise StalledError
                raise self.problem("the connection was lost")
            return taking.result()
        finally:
            taking.cancel()

    async def subscribe(
        self, subject: str, heard: Callable[[Msg], Awaitable[None]]
    ) -> Subscription:
        """Return a subscription that the server has taken.

        Raises:
            UnavailableError: The connection is lost, or we may not.
        """
        client = await self.client()
        self._said = ""
        try:
            subscription = await client.subscribe(subject, cb=heard)
            # A refusal comes before the answer to our ping. The library may take the answer to an
            # earlier ping of its own for that, but only once.
            for _ in range(2):
                await client.flush(timeout=self.timeout)  # type: ignore[arg-type]
        except (NatsError, OSError, TimeoutError) as error:
            raise self.problem(f"the connection was lost: {_reason(error)}") from error
        if "permissions violation" in self._said.lower():
            raise self.problem(self._said, _hint(self._said))
        return subscription

    async def unsubscribe(self, subscription: Subscription) -> None:
        """End a subscription; one of a lost connection is fine."""
        with suppress(NatsError, OSError):
            await subscription.unsubscribe()

    async def close(self) -> None:
        """Close the connection; every later call raises."""
        self._closed = True
        if self._client is not None:
            await self._end(self._client)
        self._tell()

    async def _end(self, client: Client) -> None:
        with suppress(NatsError, OSError, TimeoutError):
            async with asyncio.timeout(self.timeout):
                await client.close()

    async def _on_error(self, error: Exception) -> None:
        self._said = _reason(error)
        refused = _REFUSED.search(self._said)
        for refusal in self._refusals.get(refused[1].lower(), ()) if refused else ():
            if not refusal.done():
                refusal.set_result(self._said)
        if isinstance(error, SlowConsumerError):
            self._tell()

    def _on_closed_of(self, gone: "asyncio.Future[None]") -> Callable[[], Awaitable[None]]:
        async def closed() -> None:
            if not gone.done():
                gone.set_result(None)
            self._tell()

        return closed

    def _tell(self) -> None:
        for listener in list(self.listeners):
            listener()

    @property
    def connected(self) -> bool:
        """Return whether there is a live connection."""
        return self._client is not None and self._client.is_connected

    def problem(self, what: str, hint: str = "") -> UnavailableError:
        """Return an error about these servers."""
        return UnavailableError(what, where=self.where, hint=hint)


def _hint(said: str) -> str:
    return "may this user do that?" if "permissions violation" in said.lower() else ""


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return one_line(getattr(error, "strerror", None) or str(error) or type(error).__name__)

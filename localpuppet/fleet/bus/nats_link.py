"""A connection to NATS, reopened when it is lost: requests, answers, failures, deadlines.

One subscription receives all answers, with one subject for each request. nats-py's own request
waits for its full timeout after a lost connection or a denial, and uses a task and two timers; here
each of these ends the request, and there is one timer.

- Two pings detect a dead peer within the timeout, even if the TCP connection stays open.
- If TLS is required, the client leaves a server without TLS before it sends its identity.
- A permission error ends its request at once: the server reports it on the connection, and sends no
  answer to the request itself.

nats-py's own reconnecting is off: it hides an outage from waiting callers, delays their messages,
and is slow. A lost connection ends all waiting calls at once; the next call opens
a new one, and tries all servers until its deadline.
"""

import asyncio
import json
import logging
import re
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from typing import Any

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.errors import Error as NatsError

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.formats.text import one_line
from localpuppet.base.machine.anchors import read_anchor, tls_context
from localpuppet.base.value import Value
from localpuppet.fleet.bus.bus_limits import MAX_NATS_BATCH
from localpuppet.fleet.bus.key_value import RefusedError, end_of_step
from localpuppet.fleet.bus.nats_client import TlsClient, TolerantClient
from localpuppet.fleet.bus.servers import LOST, Servers, failure_text, lost_connection, tls_failure
from localpuppet.fleet.bus.store_calls import Backoff

_REFUSED = re.compile(r'permissions violation for (publish|subscription) to "([^"]*)"', re.I)
# A stored message may have a header of that name, but then the server adds others.
_NO_RESPONDERS = {"Status": "503"}


# Counted for each message of a batch.
_OVERHEAD = 1024


class StalledError(Exception):
    """A consumer announced more messages than it sends: some were replaced or removed since."""


class FloodError(UnavailableError):
    """A batch exceeds the size limit."""


class NoResponderError(UnavailableError):
    """A subject has no responder: no JetStream, or its servers are electing a leader."""


class _Question(Value):
    """A pending request: `failed` is called at most once, and not after `on_message`."""

    subject: str
    on_message: Callable[[Msg], None]
    failed: Callable[[UnavailableError], None]


class _BoundedQueue:
    """The answers to a request for a batch, up to `MAX_NATS_BATCH` bytes."""

    def __init__(self, problem: UnavailableError) -> None:
        self.waiting: asyncio.Queue[Msg | UnavailableError] = asyncio.Queue()
        self._problem = problem
        self._size = 0

    def begin(self) -> None:
        """Reset the count: the last batch was taken, and another one is requested."""
        self._size = 0

    def on_message(self, message: Msg) -> None:
        before = self._size
        self._size += len(message.data) + _OVERHEAD
        if self._size <= MAX_NATS_BATCH:
            self.waiting.put_nowait(message)
        elif before <= MAX_NATS_BATCH:  # once
            self.waiting.put_nowait(self._problem)

    def failed(self, problem: UnavailableError) -> None:
        self.waiting.put_nowait(problem)


class NatsLink:
    """One connection, from `connect` until it is lost or closed."""

    def __init__(self, *, where: str, timeout: float, must_be_tls: bool) -> None:
        self.client = TlsClient() if must_be_tls else TolerantClient()
        self.error_text = ""
        self._where = where
        self._timeout = timeout
        # Called when the connection is lost, when the server denies a subscription, and when a
        # stream may have been replaced.
        self.listeners: set[Callable[[], None]] = set()
        self._inbox = ""
        self._number = 0
        self._questions: dict[str, _Question] = {}
        self._refused: dict[str, str] = {}

    @property
    def alive(self) -> bool:
        """Return whether the connection is open, as far as is known."""
        return bool(self.client.is_connected)

    @property
    def version(self) -> str:
        return one_line(self.client.server_version)

    async def connect(self, url: str, options: Mapping[str, Any], *, inbox: str) -> None:
        await self.client.connect(
            url,
            **options,
            allow_reconnect=False,
            reconnect_time_wait=0,  # without this, it pauses after a first failure
            connect_timeout=self._timeout,  # type: ignore[arg-type]
            ping_interval=self._timeout / 2,  # type: ignore[arg-type]
            max_outstanding_pings=1,
            flush_timeout=self._timeout,
            inbox_prefix=inbox,
            name="localpuppet",
            error_cb=self._on_error,
            closed_cb=self._on_closed,
        )
        self.client.read_little()
        self._inbox = self.client.new_inbox()
        await self.client.hear(f"{self._inbox}.*", self._answered)

    async def close(self) -> None:
        """Close the connection; pending requests fail."""
        with suppress(NatsError, OSError, TimeoutError):
            async with asyncio.timeout(self._timeout):
                await self.client.close()
        self._fail(self.problem("the connection was lost"))

    async def request(
        self, subject: str, payload: bytes = b"", *, headers: Mapping[str, str] | None = None
    ) -> Msg:
        """Send a message; return the answer."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Msg] = loop.create_future()

        def on_message(message: Msg) -> None:
            if not answer.done():
                answer.set_result(message)

        def failed(problem: UnavailableError) -> None:
            if not answer.done():
                answer.set_exception(problem)

        def late() -> None:
            failed(self.problem(f"no answer within {self._timeout:g} s"))

        self.check_answers()
        left = end_of_step(self._timeout) - time.monotonic()
        if left <= 0:
            raise self.problem(f"no answer within {self._timeout:g} s")
        self._number += 1
        token = f"{self._inbox}.{self._number}"
        self._questions[token] = _Question(subject=subject, on_message=on_message, failed=failed)
        timer = loop.call_later(left, late)
        try:
            await self.client.publish(
                subject, payload, reply=token, headers=dict(headers) if headers else None
            )
            message = await answer
        except (NatsError, OSError) as error:
            raise self._failure(error) from error
        finally:
            timer.cancel()
            del self._questions[token]
            if not answer.cancel() and not answer.cancelled():
                answer.exception()  # retrieved: it may have failed during the publish
        if message.headers == _NO_RESPONDERS:
            hint = "check that JetStream is enabled and this user may use it"
            raise NoResponderError(f"no responder for {subject}", where=self._where, hint=hint)
        return message

    async def batches(
        self, subject: str, body: Mapping[str, object], *, size: int
    ) -> AsyncGenerator[Msg, None]:
        """Request batches from a pull consumer until it is empty; yield their messages."""
        self.check_answers()
        queue = _BoundedQueue(FloodError("sends more than the buffer holds", where=self._where))
        self._number += 1
        inbox = f"{self._inbox}-{self._number}"
        question = _Question(subject=subject, on_message=queue.on_message, failed=queue.failed)
        # Messages keep the subject that they are stored under: only a subscription identifies them.
        subscription = await self.subscribe(f"{inbox}.*", queue.on_message)
        self._questions[inbox] = question
        number = 0
        more = True
        try:
            while more:
                # One subject for each batch: a late end is not taken for the end of the next batch.
                number += 1
                queue.begin()
                deadline = end_of_step(self._timeout)
                answer = f"{inbox}.{number}"
                await self.client.publish(subject, json.dumps(body).encode(), reply=answer)
                count = 0
                while more and count < size:
                    message = await self._taken(queue, deadline)
                    # By the subject: a stored message may have a header of that name.
                    if not message.subject.startswith(inbox):
                        count += 1
                        yield message
                        more = message.metadata.num_pending > 0
                    elif message.subject == answer:
                        status = (message.headers or {}).get("Status")
                        if status == "503":
                            raise StalledError  # the consumer no longer has a responder
                        # 404 means "no messages"; other statuses end only this batch.
                        more = status != "404"
                        break
        except (NatsError, OSError) as error:
            raise self._failure(error) from error
        finally:
            del self._questions[inbox]
            await self.unsubscribe(subscription)

    async def _taken(self, queue: "_BoundedQueue", deadline: float) -> Msg:
        if queue.waiting.empty():
            left = deadline - time.monotonic()
            try:
                async with asyncio.timeout(min(self._timeout / 4, left)):
                    message = await queue.waiting.get()
            except TimeoutError as error:
                if left < self._timeout / 4:
                    late = f"did not send everything within {self._timeout:g} s"
                    raise self.problem(late) from error
                raise StalledError from error
        else:
            message = queue.waiting.get_nowait()
        if isinstance(message, UnavailableError):
            raise message
        return message

    async def subscribe(self, subject: str, on_message: Callable[[Msg], None]) -> Subscription:
        """Subscribe; the server has the subscription before any later request; see `check`."""
        self._refused.pop(subject.lower(), None)
        try:
            return await self.client.hear(subject, on_message)
        except (NatsError, OSError) as error:
            raise self._failure(error) from error

    def check(self, subscription: Subscription) -> None:
        """Check a subscription; conclusive after the server has answered a later request."""
        refusal = self._refused.get(subscription.subject.lower())
        if refusal is not None:
            raise self._refusal(refusal)
        if not self.alive:
            raise self.problem("the connection was lost")

    def check_answers(self) -> None:
        """Check that the server accepted the subscription for answers."""
        refusal = self._refused.get(f"{self._inbox}.*".lower())
        if refusal is not None:
            raise self._refusal(refusal)

    async def unsubscribe(self, subscription: Subscription) -> None:
        """End a subscription; one of a lost connection is fine.

        A denial stays recorded: another subscription may have the same subject.
        """
        with suppress(NatsError, OSError):
            await subscription.unsubscribe()

    def problem(self, what: str) -> UnavailableError:
        """Return an error about these servers."""
        return UnavailableError(what, where=self._where)

    def _refusal(self, reason_text: str) -> UnavailableError:
        return RefusedError(reason_text, where=self._where, hint="check this user's permissions")

    def _failure(self, error: Exception) -> UnavailableError:
        lost = "" if self.alive else "the connection was lost: "
        return self.problem(f"{lost}{reason(error)}")

    def _answered(self, message: Msg) -> None:
        question = self._questions.get(message.subject)
        if question is not None:
            question.on_message(message)

    async def _on_error(self, error: Exception) -> None:
        self.error_text = reason(error)
        refused = _REFUSED.search(self.error_text)
        if refused is not None and refused[1].lower() == "publish":
            for question in list(self._questions.values()):
                if question.subject.lower() == refused[2].lower():
                    question.failed(self._refusal(self.error_text))
        elif refused is not None:
            self._refused[refused[2].lower()] = self.error_text
            if refused[2].lower() == f"{self._inbox}.*".lower():
                self._fail(self._refusal(self.error_text))
            self.tell()

    async def _on_closed(self) -> None:
        self._fail(self.problem("the connection was lost"))
        self.tell()

    def tell(self) -> None:
        """Make each listener look at the state of what it follows."""
        for listener in list(self.listeners):
            listener()

    def _fail(self, problem: UnavailableError) -> None:
        for question in list(self._questions.values()):
            question.failed(problem)


def reason(error: Exception) -> str:
    """Return the text of an error of the library or of the system, on one line."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return failure_text(error)


# Errors of nats-py while connecting: it trusts the types in the server's first message.
_RUBBISH = (NatsError, OSError, ValueError, TypeError, AttributeError, RecursionError)


def _worth_saying(record: logging.LogRecord) -> bool:
    """Drop a log line of asyncio that nats-py's TLS upgrade always causes."""
    return not record.getMessage().startswith("returning true from eof_received()")


class NatsConnection:
    """The connection of one client.

    If a URL or a CA requires TLS, a server without it is rejected; otherwise the server decides.
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
                    if self._must_be_tls and ("onnection lost" in text or isinstance(error, LOST)):
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

    def without_jetstream(self) -> UnavailableError:
        """Return an error about servers whose answers are not those of JetStream."""
        hint = "start nats-server with -js, or write 'jetstream {}' in its configuration"
        return self.problem("does not answer as JetStream does", hint)

    def problem(self, what: str, hint: str = "") -> UnavailableError:
        """Return an error about these servers."""
        return UnavailableError(what, where=self.where, hint=hint)

"""One live connection to a NATS server: questions, their answers, and all that can come instead.

Owns: one subscription for the answers to all questions, a subject for each. nats-py's own request
would wait to its end for what a lost connection, or a server that refuses it, cannot bring, and
takes a task and two timers for each; here each of these ends the question, and a timer is all.
Refuses to know: when to connect, and where to (`bus.nats.connection`).

A dead peer that keeps the connection open is found by two pings, within the timeout. A server that
does not speak TLS where it must is left before it is told who we are. What a user may not do is an
error at once: the server says so beside the connection, and the question itself gets no answer.
"""

import asyncio
import json
import re
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.formats.text import one_line
from localpuppet.fleet.bus.deadline import end_of_step
from localpuppet.fleet.bus.key_value import RefusedError

try:
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription
    from nats.errors import Error as NatsError

    from localpuppet.fleet.bus.nats.client import TlsClient, TolerantClient
except ModuleNotFoundError as error:
    raise InvalidInputError(
        f"needs the Python package {error.name}",
        where="bus nats",
        hint="pip install '/opt/localpuppet[nats]', where that is the clone (docs/bus.md)",
    ) from error

__all__ = [
    "FloodError",
    "Msg",
    "NatsError",
    "NatsLink",
    "NobodyError",
    "StalledError",
    "Subscription",
    "reason",
]

_REFUSED = re.compile(r'permissions violation for (publish|subscription) to "([^"]*)"', re.I)
# What is stored may have a header of that name, but then the server adds others.
_NO_RESPONDERS = {"Status": "503"}


# Bytes that a batch may have, and what each of its messages counts for besides.
MAX_BATCH = 12 * 1024 * 1024
_OVERHEAD = 1024


class StalledError(Exception):
    """A consumer promised more than it sends: what it counted was replaced or removed meanwhile."""


class FloodError(UnavailableError):
    """A batch is larger than what we hold."""


class NobodyError(UnavailableError):
    """Nobody answers a subject: there is no JetStream, or its servers are choosing a leader."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """What waits for an answer: `failed` is called at most once, and not after `heard`."""

    subject: str
    heard: Callable[[Msg], None]
    failed: Callable[[UnavailableError], None]


class _BoundedQueue:
    """What comes in answer to a question for a batch, up to `MAX_BATCH` bytes of it.

    Args:
        problem: What stands in the queue in place of what comes beyond that.
    """

    def __init__(self, problem: UnavailableError) -> None:
        self.waiting: asyncio.Queue[Msg | UnavailableError] = asyncio.Queue()
        self._problem = problem
        self._size = 0

    def begin(self) -> None:
        """Count anew: another batch is asked for, and all of the last one was taken."""
        self._size = 0

    def heard(self, message: Msg) -> None:
        before = self._size
        self._size += len(message.data) + _OVERHEAD
        if self._size <= MAX_BATCH:
            self.waiting.put_nowait(message)
        elif before <= MAX_BATCH:  # said once
            self.waiting.put_nowait(self._problem)

    def failed(self, problem: UnavailableError) -> None:
        self.waiting.put_nowait(problem)


class NatsLink:
    """One connection, from `connect` until it is lost or closed.

    Args:
        where: The servers, for messages.
        timeout: The deadline of each call in seconds.
        must_be_tls: Whether a server without TLS is left before it is told who we are.
    """

    def __init__(self, *, where: str, timeout: float, must_be_tls: bool) -> None:
        self.client = TlsClient() if must_be_tls else TolerantClient()
        self.said = ""
        self._where = where
        self._timeout = timeout
        # Called when the connection is lost, and when the server refuses a subscription.
        self.listeners: set[Callable[[], None]] = set()
        self._inbox = ""
        self._number = 0
        self._questions: dict[str, _Question] = {}
        self._refused: dict[str, str] = {}

    @property
    def alive(self) -> bool:
        """Return whether the connection is there, as far as we know."""
        return bool(self.client.is_connected)

    @property
    def version(self) -> str:
        """Return the version of the server."""
        return one_line(self.client.server_version)

    async def connect(self, url: str, options: Mapping[str, Any], *, inbox: str) -> None:
        """Connect.

        Args:
            url: The server.
            options: Who we are, as nats-py calls it.
            inbox: The prefix of the subjects that answers come to.

        Raises:
            NatsError: The server refuses us, or is none; `said` may tell more.
            OSError: It cannot be reached.
        """
        await self.client.connect(
            url,
            **options,
            allow_reconnect=False,
            reconnect_time_wait=0,  # it would pause after a first failure all the same
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
        """Close the connection; what waits on it fails."""
        with suppress(NatsError, OSError, TimeoutError):
            async with asyncio.timeout(self._timeout):
                await self.client.close()
        self._fail(self.problem("the connection was lost"))

    async def request(
        self, subject: str, payload: bytes = b"", *, headers: Mapping[str, str] | None = None
    ) -> Msg:
        """Send a message; return the answer.

        Raises:
            NobodyError: Nobody is there to answer.
            UnavailableError: It is refused, the connection is lost, or no answer comes in time.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Msg] = loop.create_future()

        def heard(message: Msg) -> None:
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
        self._questions[token] = _Question(subject=subject, heard=heard, failed=failed)
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
                answer.exception()  # looked at: it may have failed while we sent
        if message.headers == _NO_RESPONDERS:
            hint = "is JetStream on, and may this user use it?"
            raise NobodyError(f"nobody answers {subject}", where=self._where, hint=hint)
        return message

    async def batches(
        self, subject: str, body: Mapping[str, object], *, size: int
    ) -> AsyncGenerator[Msg, None]:
        """Ask a pull consumer for batches, until it has no more; yield their messages.

        Raises:
            UnavailableError: It is refused, the connection is lost, or a batch did not come within
                the deadline.
            FloodError: A batch is larger than `MAX_BATCH`.
            StalledError: Nothing came for a quarter of that, or the consumer is gone.
        """
        self.check_answers()
        queue = _BoundedQueue(FloodError("sends more than is held", where=self._where))
        self._number += 1
        inbox = f"{self._inbox}-{self._number}"
        question = _Question(subject=subject, heard=queue.heard, failed=queue.failed)
        # What comes keeps the subject that it is stored under: it takes a subscription to know it.
        subscription = await self.subscribe(f"{inbox}.*", queue.heard)
        self._questions[inbox] = question
        number = 0
        more = True
        try:
            while more:
                # A subject for each batch: an end that comes late is not taken for the next one's.
                number += 1
                queue.begin()
                deadline = end_of_step(self._timeout)
                answer = f"{inbox}.{number}"
                await self.client.publish(subject, json.dumps(body).encode(), reply=answer)
                count = 0
                while more and count < size:
                    message = await self._taken(queue, deadline)
                    # By its subject: what is stored may have a header of that name.
                    if not message.subject.startswith(inbox):
                        count += 1
                        yield message
                        more = message.metadata.num_pending > 0
                    elif message.subject == answer:
                        status = (message.headers or {}).get("Status")
                        if status == "503":
                            raise StalledError  # nobody answers for this consumer any more
                        # "No messages"; others end a batch, and no more.
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

    async def subscribe(self, subject: str, heard: Callable[[Msg], None]) -> Subscription:
        """Return a subscription that the server has before any later question; see `check`.

        Raises:
            UnavailableError: The connection is lost.
        """
        self._refused.pop(subject.lower(), None)
        try:
            return await self.client.hear(subject, heard)
        except (NatsError, OSError) as error:
            raise self._failure(error) from error

    def check(self, subscription: Subscription) -> None:
        """See that a subscription is there: known for sure once a later question was answered.

        Raises:
            UnavailableError: The server refused it, or the connection is lost.
        """
        said = self._refused.get(subscription.subject.lower())
        if said is not None:
            raise self._refusal(said)
        if not self.alive:
            raise self.problem("the connection was lost")

    def check_answers(self) -> None:
        """See that answers can come to us.

        Raises:
            UnavailableError: The server refused it.
        """
        said = self._refused.get(f"{self._inbox}.*".lower())
        if said is not None:
            raise self._refusal(said)

    async def unsubscribe(self, subscription: Subscription) -> None:
        """End a subscription; one of a lost connection is fine.

        That it was refused stays known: another one may have the same subject.
        """
        with suppress(NatsError, OSError):
            await subscription.unsubscribe()

    def problem(self, what: str, hint: str = "") -> UnavailableError:
        """Return an error about these servers."""
        return UnavailableError(what, where=self._where, hint=hint)

    def _refusal(self, said: str) -> UnavailableError:
        return RefusedError(said, where=self._where, hint="may this user do that?")

    def _failure(self, error: Exception) -> UnavailableError:
        lost = "" if self.alive else "the connection was lost: "
        return self.problem(f"{lost}{reason(error)}")

    def _answered(self, message: Msg) -> None:
        question = self._questions.get(message.subject)
        if question is not None:
            question.heard(message)

    async def _on_error(self, error: Exception) -> None:
        self.said = reason(error)
        refused = _REFUSED.search(self.said)
        if refused is not None and refused[1].lower() == "publish":
            for question in list(self._questions.values()):
                if question.subject.lower() == refused[2].lower():
                    question.failed(self._refusal(self.said))
        elif refused is not None:
            self._refused[refused[2].lower()] = self.said
            if refused[2].lower() == f"{self._inbox}.*".lower():
                self._fail(self._refusal(self.said))
            self._tell()

    async def _on_closed(self) -> None:
        self._fail(self.problem("the connection was lost"))
        self._tell()

    def _tell(self) -> None:
        for listener in list(self.listeners):
            listener()

    def _fail(self, problem: UnavailableError) -> None:
        for question in list(self._questions.values()):
            question.failed(problem)


def reason(error: Exception) -> str:
    """Return what an error of the library or of the system says, on one line."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return one_line(getattr(error, "strerror", None) or str(error) or type(error).__name__)

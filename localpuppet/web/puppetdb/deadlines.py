"""The time for queries: of one request, and of the requests that share an answer."""

from collections.abc import Callable
from dataclasses import dataclass, field

from localpuppet.fleet.inventory.query.evaluating import QueryDeadlineError


@dataclass(slots=True, eq=False)
class RequestDeadline:
    """The end of the time for a query.

    Attributes:
        monotonic: Returns the time, in seconds.
        seconds: The time for the query.
        cancelled: Whether the client has left.
    """

    monotonic: Callable[[], float]
    seconds: float
    cancelled: bool = False
    _end: float = field(init=False)

    def __post_init__(self) -> None:
        self._end = self.monotonic() + self.seconds

    @property
    def left(self) -> float:
        """Return the seconds that are left."""
        return max(0.0, self._end - self.monotonic())

    @property
    def is_over(self) -> bool:
        """Whether the time is over, or the client has left."""
        return self.cancelled or self.monotonic() > self._end

    def error(self) -> QueryDeadlineError:
        """Return the error of a query that took too long."""
        return QueryDeadlineError(
            f"Query exceeded timeout: {self.seconds:g} s", hint="select fewer nodes or columns"
        )


@dataclass(slots=True, eq=False)
class SharedDeadline:
    """The end of the time for an answer: when the time of all its requests is over.

    Attributes:
        requests: The deadlines of the requests; a tuple, because threads read it.
        cancelled: Whether the process ends.
    """

    requests: tuple[RequestDeadline, ...] = ()
    cancelled: bool = False

    def check(self) -> None:
        """Raise an error if no request waits any longer.

        Raises:
            QueryDeadlineError: The time of all requests is over, or their clients have left.
        """
        if not self.cancelled:
            for request in self.requests:
                if not request.is_over:
                    return
        raise QueryDeadlineError("no request waits for the answer any longer")

"""Exceptions that users may see.

Each says what is wrong, where (a file, a breadcrumb inside it, a line) and what to do. The class
has the exit code (docs/reference/exit-codes.md lists them). Messages carry no secrets; control
characters are escaped when a message is shown.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

ROOT_HINT = "run as root, or choose a root that you own with --root"


class LocalpuppetError(Exception):
    """An error with its place and its cure; `what` ends without a full stop."""

    exit_code = 70

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.hint = hint

    def __str__(self) -> str:
        """Return the one line that users see: `where: what (hint)`."""
        line = f"{self.where}: {self.what}" if self.where else self.what
        return f"{line} ({self.hint})" if self.hint else line

    def at(self, where: str) -> "LocalpuppetError":
        """Return the same error with `where` in front of its place."""
        place = f"{where}: {self.where}" if self.where else where
        return type(self)(self.what, where=place, hint=self.hint)


class InvalidInputError(LocalpuppetError):
    """localpuppet rejects user input; it has started nothing and written nothing."""

    exit_code = 2


class StateError(LocalpuppetError):
    """This machine cannot store or read localpuppet's state (full disk, read-only, damaged)."""

    exit_code = 1


def thread_shortage(error: BaseException) -> StateError | None:
    """Return the error if the machine refused a thread; `None` for any other error."""
    # Python has no exception class for it.
    if not isinstance(error, RuntimeError) or "start new thread" not in str(error):
        return None
    return StateError(
        "cannot start a thread: this machine's limit of processes or memory is reached",
        hint="end other processes, or raise the limit: TasksMax= of the service, 'ulimit -u'",
    )


class EncError(LocalpuppetError):
    """The ENC command of the site failed, timed out or returned invalid output."""

    exit_code = 1


class PuppetMissingError(LocalpuppetError):
    """Puppet is not installed in the expected place, or does not answer."""

    exit_code = 1


class IntegrityError(LocalpuppetError):
    """Bytes, a tag or a signature do not match; localpuppet raises an alarm and never updates."""

    exit_code = 3


class NotInForceError(IntegrityError):
    """A certificate or a revocation list has expired, or is not valid yet.

    localpuppet still trusts what it verified while they were valid.
    """


class UnavailableError(LocalpuppetError):
    """A server (an https input, the bus, git) gave no valid answer."""

    exit_code = 69


def check_limit(
    size: int,
    limit: int,
    *,
    what: str = "is too large",
    unit: str = "bytes",
    where: str = "",
    hint: str = "",
) -> None:
    """Reject a size above a limit; the message has both."""
    if size > limit:
        line = f"{what}: {size} {unit}, the limit is {limit}"
        raise InvalidInputError(line, where=where, hint=hint)


@contextmanager
def errors_at(where: str, kind: type[LocalpuppetError] = InvalidInputError) -> Iterator[None]:
    """Raise errors of the block with `where` in front of their place.

    Args:
        kind: The errors that it concerns; others pass as they are.
    """
    try:
        yield
    except kind as error:
        raise error.at(where) from error


def first_error(error: BaseException) -> BaseException:
    """Return the first error in a group, or the error itself if it is not a group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


@contextmanager
def gather_unavailable(errors: list[UnavailableError]) -> Iterator[None]:
    """Collect the error of an unreachable server, so that the caller can try others first."""
    try:
        yield
    except UnavailableError as error:
        errors.append(error)


def raise_unavailable(errors: Sequence[UnavailableError]) -> None:
    """Raise one error that names every unreachable server, if there was any.

    Raises:
        UnavailableError: The list is not empty.
    """
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise UnavailableError("; ".join(map(str, errors)))


class BusyError(LocalpuppetError):
    """Another run is active on this node."""

    exit_code = 75


class OnHoldError(LocalpuppetError):
    exit_code = 75

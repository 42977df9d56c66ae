"""The one error tree.

Every error that a user may see is one of these: what went wrong, where (a file, a breadcrumb
inside it, a line), and what to do. The exit code belongs to the class (the table is in
docs/reference.md). Messages carry no secrets; control characters are made visible when shown.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class LocalpuppetError(Exception):
    """An error with a place and a remedy.

    Args:
        what: What is wrong, without a full stop.
        where: The file and breadcrumb, line or command that it concerns.
        hint: What the user can do about it.
    """

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
        """Return the same error with `where` put in front of its place."""
        place = f"{where}: {self.where}" if self.where else where
        return type(self)(self.what, where=place, hint=self.hint)


class InvalidInputError(LocalpuppetError):
    """Something that the user wrote is refused; nothing was started and nothing written."""

    exit_code = 2


class StateError(LocalpuppetError):
    """This machine cannot hold or read what we must write down (full disk, read-only, damaged)."""

    exit_code = 1


def thread_shortage(error: BaseException) -> StateError | None:
    """Return the error for a machine that refused a thread; `None` for any other error."""
    # Python has no class for it.
    if not isinstance(error, RuntimeError) or "start new thread" not in str(error):
        return None
    return StateError(
        "cannot start a thread: this machine's limit of processes or memory is reached",
        hint="end other processes, or raise the limit: TasksMax= of the service, 'ulimit -u'",
    )


class EncError(LocalpuppetError):
    """The site's own ENC command failed, hung or answered rubbish."""

    exit_code = 1


class PuppetMissingError(LocalpuppetError):
    """Puppet is not installed where we look for it, or does not answer."""

    exit_code = 1


class IntegrityError(LocalpuppetError):
    """Bytes, a tag or a signature are not what they must be: an alarm, never an update."""

    exit_code = 3


class NotInForceError(IntegrityError):
    """A certificate or a revocation list has run out, or is not valid yet: nobody was distrusted.

    What was believed while they were in force stays believed.
    """


class UnavailableError(LocalpuppetError):
    """A server that we asked (an https input, later bus and git) did not answer properly."""

    exit_code = 69


@contextmanager
def gather_unavailable(errors: list[UnavailableError]) -> Iterator[None]:
    """Keep the error of a server that does not answer, so that others can be asked first."""
    try:
        yield
    except UnavailableError as error:
        errors.append(error)


def raise_unavailable(errors: Sequence[UnavailableError]) -> None:
    """Raise what was kept: one error that names each server.

    Raises:
        UnavailableError: There was one.
    """
    if len(errors) == 1:
        raise errors[0]
    if errors:
        raise UnavailableError("; ".join(map(str, errors)))


class BusyError(LocalpuppetError):
    """Another run has this node."""

    exit_code = 75


class OnHoldError(LocalpuppetError):
    """This node is not to run for now."""

    exit_code = 75

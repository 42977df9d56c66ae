"""What the middle of the program needs of the world, as Protocols.

Adapters implement them, tests have fakes of them. Nothing here does anything.
"""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from localpuppet.model.tag_object import TagObject


class Clock(Protocol):
    """Time: aware UTC for records, monotonic seconds for durations."""

    def now(self) -> datetime:
        """Return the time of day in UTC."""
        ...

    def monotonic(self) -> float:
        """Return seconds from a clock that never goes back."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessId:
    """A process that cannot be mistaken for a later one with the same number.

    Attributes:
        pid: The number.
        boot_id: The kernel's random id of this boot (`/proc/sys/kernel/random/boot_id`).
        started: Start time in clock ticks since boot (`/proc/PID/stat`, field 22).
    """

    pid: int
    boot_id: str
    started: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a child ended: an exit code, or the signal that killed it."""

    code: int | None
    signal: int | None


class Child(Protocol):
    """A started Puppet, its process group and, where the kernel lets us, its cgroup."""

    @property
    def identity(self) -> ProcessId:
        """Return who it is."""
        ...

    def wait(self, seconds: float) -> Ended | None:
        """Return how it ended, or `None` when it goes on after `seconds` or a signal came."""
        ...

    def read(self) -> bytes:
        """Return what it has written since the last call; empty when nothing is new."""
        ...

    def skip(self) -> None:
        """Throw away what it has written and was not read."""
        ...

    def end(self, *, kill: bool) -> None:
        """Ask it and everything it started to end (TERM), or kill it (KILL)."""
        ...

    def release(self) -> None:
        """Free what was held for it; what it left running on purpose goes on."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """What a finished command answered."""

    ended: Ended
    stdout: bytes
    stderr: bytes


class Processes(Protocol):
    """Other processes."""

    def me(self) -> ProcessId:
        """Return this process."""
        ...

    def alive(self, process: ProcessId) -> bool:
        """Return whether that very process still runs."""
        ...

    def command_line(self, pid: int) -> Sequence[str]:
        """Return the arguments of a running process; empty when there is none."""
        ...

    def start(
        self, argv: Sequence[str], *, env: Mapping[str, str], cwd: Path, keep: int, group: str
    ) -> Child:
        """Start a child in a process group of its own.

        Args:
            argv: Absolute program and arguments.
            env: Its whole environment.
            cwd: Its working directory.
            keep: A file descriptor that it inherits, whatever happens to us.
            group: The name for its cgroup.

        Raises:
            StateError: It could not be started.
        """
        ...

    def capture(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str],
        timeout: float,
        limit: int,
    ) -> Output | None:
        """Run a command to its end; `None` when it did not end within `timeout` seconds.

        Everything that it started is killed then. More than `limit` bytes of output also end it.

        Raises:
            StateError: It could not be started.
        """
        ...

    def sleep(self, seconds: float) -> None:
        """Wait until a signal comes or a child ends, at most `seconds`."""
        ...

    def cancellations(self) -> int:
        """Return how often we were asked to stop (INT, TERM) since the program started."""
        ...


class Observer(Protocol):
    """Someone who watches a run: a terminal, a log, nobody."""

    def command(self, text: str) -> None:
        """Take the command line, before Puppet starts."""
        ...

    def line(self, text: str) -> None:
        """Take a line of Puppet's output, already printable."""
        ...

    def tick(self, seconds: float) -> None:
        """Learn that the run goes on after `seconds`."""
        ...

    def note(self, text: str) -> None:
        """Take something that the supervisor has to say (a warning, that it ends Puppet)."""
        ...


class Repository(Protocol):
    """Git repositories by URL, each with a mirror on this machine.

    A tag that is in the mirror already is not asked for again unless `refresh` says so.
    """

    def sweep(self) -> None:
        """Remove what a process that died left half made. Call it with the store's lock only.

        Raises:
            StateError: The disk refused.
        """
        ...

    def fetch(self, tags: Sequence[tuple[str, str]], *, refresh: bool) -> None:
        """Bring tags into their mirrors, several repositories at a time.

        Args:
            tags: Pairs of URL and tag.
            refresh: Ask the server also for tags that are there.

        Raises:
            UnavailableError: A repository or tag cannot be had.
            IntegrityError: What the server sent is broken.
        """
        ...

    def arrivals(
        self, tags: Sequence[tuple[str, str]], *, refresh: bool
    ) -> Generator[list[tuple[str, str]], None, None]:
        """Do what `fetch` does, and yield tags as they arrive.

        Args:
            tags: Pairs of URL and tag.
            refresh: Ask the server also for tags that are there.

        Yields:
            Some of the tags, each once; others are fetched meanwhile, until the generator is
            closed.

        Raises:
            UnavailableError: A repository or tag cannot be had.
            IntegrityError: What the server sent is broken.
        """
        ...

    def tag(self, url: str, tag: str) -> TagObject:
        """Return what a fetched tag is.

        Raises:
            IntegrityError: It is nested, misnamed, or points at no commit.
            UnavailableError: It was not fetched.
        """
        ...

    def tags(self, tags: Sequence[tuple[str, str]]) -> Mapping[tuple[str, str], TagObject]:
        """Return what fetched tags are, by URL and tag: `tag` for many of them at once.

        Raises:
            IntegrityError: One is nested, misnamed, or points at no commit.
            UnavailableError: One was not fetched.
        """
        ...

    def verify_signature(self, url: str, tag: str, *, signers: Path) -> None:
        """Hold a tag's signature against pinned keys.

        Args:
            url: The repository.
            tag: A fetched tag.
            signers: An OpenSSH allowed-signers file, or OpenPGP public keys in ASCII armour.

        Raises:
            IntegrityError: It is lightweight, unsigned, or signed by nobody in `signers`.
        """
        ...

    def write(
        self, trees: Sequence[tuple[str, str, str]], directory: Path
    ) -> Generator[str, None, None]:
        """Write trees out as they are in git, byte for byte.

        Args:
            trees: URL, tree id, and the name of the directory to make for it.
            directory: An existing, empty directory.

        Yields:
            Names of directories, each when it is whole; others may be written meanwhile, until
            the generator is closed.

        Raises:
            IntegrityError: A tree holds a submodule, or its objects are not there.
        """
        ...

    def commit_time(self, url: str, commit: str) -> int:
        """Return when a fetched commit was made, in seconds since 1970.

        Raises:
            IntegrityError: It is not there.
        """
        ...

    def files(self, url: str, commit: str, names: Sequence[str]) -> Mapping[str, bytes]:
        """Return the bytes of files at the top of a fetched commit; those that are there.

        Raises:
            IntegrityError: One is no ordinary file, or larger than 1 MiB.
        """
        ...

    def refs(self, urls: Sequence[str]) -> Mapping[str, Mapping[str, str]]:
        """Ask repositories for all their refs, several at a time; nothing is fetched.

        Returns:
            URL → full name of a ref, or HEAD → the commit behind it (that of an annotated tag, not
            the tag object).

        Raises:
            UnavailableError: A repository cannot be had.
        """
        ...


class PackageTools(Protocol):
    """The programs that build and install packages."""

    def build_deb(self, tree: Path, control: str, target: Path, *, time: int) -> None:
        """Build a Debian package of the files below `tree`.

        Args:
            tree: What is installed at `/`; modes and times as they are to be.
            control: The control file.
            target: The file to make.
            time: Seconds since 1970 that stand for "now".

        Raises:
            StateError: dpkg-deb is not there, or failed.
        """
        ...

    def build_rpm(
        self, tree: Path, spec: str, macros: Mapping[str, str], target: Path, *, time: int
    ) -> None:
        """Build an RPM package of the files below `tree`; see `build_deb`.

        Args:
            tree: What is installed at `/`; the spec finds it in `LOCALPUPPET_TREE`.
            spec: The spec.
            macros: Macros that are defined for it.
            target: The file to make.
            time: Seconds since 1970 that stand for "now".

        Raises:
            StateError: rpmbuild is not there, or failed.
        """
        ...

    def install(self, package: Path) -> None:
        """Install a package of a release on this machine; again is fine.

        Raises:
            InvalidInputError: It is no regular file, others could write it, or it is no package of
                a release.
            StateError: dpkg or rpm is not there, or failed.
        """
        ...

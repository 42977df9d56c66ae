"""The attempts of this node: applies that were refused, one file each in `attempts/`.

- At most `KEPT` attempts are kept; a repeated refusal replaces the one before.
- If an attempt cannot be written, the system log gets a line and the refusal stays as it is.
- A run that has a record is not an attempt.
"""

import os
import syslog
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from localpuppet.base.errors import InvalidInputError, LocalpuppetError, StateError
from localpuppet.base.formats.json_file import json_files, read_json
from localpuppet.base.formats.names import RunId
from localpuppet.base.formats.text import one_line, url_without_secrets
from localpuppet.base.machine.files import make_private, remove, write_json
from localpuppet.base.machine.ports import Clock
from localpuppet.base.value import Value

if TYPE_CHECKING:
    from localpuppet.node.runs.options import RunOptions
    from localpuppet.node.runs.run import Attempt
    from localpuppet.node.runs.run_records import Records


KEPT = 50
LONGEST = 1000


class Attempts(Value):
    """The attempts of this node, newest first; `after_refusal` raises nothing."""

    directory: Path
    own: Path
    records: "Records"
    metrics: Path
    clock: Clock
    system_log: Callable[[str], None]
    after_refusal: "Callable[[Attempt], None]" = lambda _attempt: None

    @contextmanager
    def record_refusal(
        self, options: "RunOptions", source: str | None = None
    ) -> Iterator[Callable[[str], None]]:
        """Record an attempt if the body is refused before the record of a run was opened.

        Yields a function that takes the release's name when it is known.

        Args:
            source: Where the input comes from; the own one for `None`.
        """
        known: list[str] = []
        try:
            yield known.append
        except (LocalpuppetError, OSError) as error:
            release = known[-1] if known else ""
            try:
                if not self.records.is_mine():
                    self._note(error, options, release=release, source=source or str(self.own))
            except (StateError, OSError) as problem:
                lines = map(one_line, (f"apply {release}".strip(), str(error), str(problem)))
                self.system_log("{} was refused: {}; not recorded: {}".format(*lines)[:LONGEST])
            raise

    def _note(self, error: Exception, options: "RunOptions", *, release: str, source: str) -> None:
        from localpuppet.base.formats.times import show_time
        from localpuppet.node.runs import metrics_file
        from localpuppet.node.runs.run import Attempt, refusal

        now = show_time(self.clock.now())
        attempt = Attempt(
            at=now,
            since=now,
            times=1,
            refusal=refusal(error),
            reason=one_line(str(error))[:LONGEST],
            release=release,
            input=one_line(url_without_secrets(source) if "://" in source else source)[:LONGEST],
            user=options.user,
            cause=options.cause,
            noop=options.noop,
        )
        attempt = self._keep(attempt)
        metrics_file.add_attempt(self.metrics, attempt)
        self.after_refusal(attempt)

    def _keep(self, attempt: "Attempt") -> "Attempt":
        from dataclasses import replace

        from localpuppet.node.runs.run import new_run_id

        make_private(self.directory.parent)
        make_private(self.directory)
        names = self._names()
        before = self._read(names[0]) if names else None
        again = before is not None and attempt.repeats(before)
        if before is not None and again:
            attempt = replace(attempt, since=before.since, times=before.times + 1)
        name = new_run_id(self.clock.now(), os.urandom(2).hex(), names[0] if names else None)
        write_json(self._path(name), attempt.to_dict())
        for old in names[KEPT - 1 :] + (names[:1] if again else []):
            remove(self._path(old))
        return attempt

    def newest(self) -> "Attempt | None":
        return next(self.history(), None)

    def history(self) -> "Iterator[Attempt]":
        """Return the attempts, newest first, without damaged ones."""
        for name in self._names():
            attempt = self._read(name)
            if attempt is not None:
                yield attempt

    def _read(self, name: RunId) -> "Attempt | None":
        from localpuppet.node.runs.run import Attempt

        try:
            return Attempt.from_dict(read_json(self._path(name)))
        except (FileNotFoundError, StateError):
            return None

    def _path(self, name: RunId) -> Path:
        return self.directory / f"{name}.json"

    def _names(self) -> list[RunId]:
        names = []
        for file in json_files(self.directory):
            with suppress(InvalidInputError):
                names.append(RunId.parse(file.stem))
        return names[::-1]


def write_system_log(text: str) -> None:
    """Write an error to the system log; without a running log, the error is dropped."""
    syslog.openlog("localpuppet", syslog.LOG_PID, syslog.LOG_DAEMON)
    syslog.syslog(syslog.LOG_ERR, text)

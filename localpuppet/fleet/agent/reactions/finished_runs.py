"""The finished runs of this node that the reactor uses, with their dependencies.

- Runs with `--noop` or `--tags` and runs of a work tree do not count: they do not show what the
  next complete run does.
"""

from collections.abc import Sequence

from localpuppet.base.errors import StateError
from localpuppet.fleet.agent.reactions.dependency import Dependency, DependencySource, FinishedRun
from localpuppet.node.runs.records import Records, RunDirectory
from localpuppet.node.runs.run import RunState, Status


class FinishedRuns:
    """The recorded runs.

    Args:
        records: The records of runs.
        sources: The kinds of dependencies.
    """

    def __init__(self, records: Records, sources: Sequence[DependencySource]) -> None:
        self._records = records
        self._sources = sources
        self._nothing: tuple[str | None, str | None] | None = None

    def after(self, run: str | None) -> tuple[list[FinishedRun], bool]:
        """Return the complete runs after one, and whether one is running; see `NodeRuns`."""
        ids = self._records.ids()
        newest = (run, ids[0] if ids else None)
        if newest == self._nothing:
            return [], False  # the agent asks often, and usually no run has ended
        later: list[Status] = []
        for name in ids:
            if run is not None and name <= run:
                break
            status = self._records.status(RunDirectory(self._records.directory / name))
            later.append(status)
            if run is None and status.good:
                break
        ended: list[FinishedRun] = []
        for status in reversed(later):
            if status.state is not RunState.FINISHED:
                return ended, True
            if status.whole:
                ended.append(self._ended(status))
        if not ended:
            self._nothing = newest
        return ended, False

    def _ended(self, status: Status) -> FinishedRun:
        dependencies: list[Dependency] = []
        try:
            for source in self._sources:
                dependencies += source.dependencies_of(status.id)
        except StateError:
            return FinishedRun(
                run=status.id, good=False
            )  # the answers that it received are unknown
        return FinishedRun(run=status.id, good=status.good, dependencies=tuple(dependencies))

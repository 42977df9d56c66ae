"""Records of runs on disk, without any run: what `Records` works on."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from localpuppet.base.formats.times import show_time
from localpuppet.base.machine.ports import ProcessId
from localpuppet.node.runs.options import RunRequest
from localpuppet.node.runs.run import Outcome, RunState, Status
from localpuppet.node.runs.run_records import GoodRuns, Records, RunDirectory
from tests.doubles.ports import FakeClock, FakeProcesses

SUPERVISOR = ProcessId(pid=7, boot_id="b", started=3)
PUPPET = ProcessId(pid=8, boot_id="b", started=4)


class Recorded:
    """Records on disk, a clock, and the processes that live."""

    def __init__(self, directory: Path) -> None:
        self.clock = FakeClock()
        self.processes = FakeProcesses([SUPERVISOR], clock=self.clock)
        self.records = Records(directory / "runs", self.processes)
        self.good = directory / "good_runs"
        self.good_runs = GoodRuns(self.good, records=self.records, releases=5)

    def request(self, run: RunDirectory, **more: Any) -> RunRequest:
        fields: dict[str, Any] = {
            "id": run.id,
            "requested_at": show_time(self.clock.now()),
            "user": "alice",
            "cause": "manual",
            "release": "app/tags/r1",
            "modulepath": (),
            "environment": "production",
            "input": "input.yaml",
            "input_sha256": "",
            "layers": (),
            "noop": False,
            "timeout": 3600.0,
            "command": ("puppet",),
            "node_document": {},
            **more,
        }
        return RunRequest(**fields)

    def status(self, run: RunDirectory, **more: Any) -> Status:
        fields: dict[str, Any] = {
            "id": run.id,
            "state": RunState.RUNNING,
            "release": "app/tags/r1",
            "started_at": show_time(self.clock.now()),
            "supervisor": asdict(SUPERVISOR),
            "puppet": asdict(PUPPET),
            **more,
        }
        return Status(**fields)

    def begin(self, **more: Any) -> RunDirectory:
        """Open the record of a run that is running."""
        run = self.records.create(self.clock)
        run.open(self.request(run), self.status(run, **more))
        return run

    def finish(self, run: RunDirectory, outcome: Outcome = Outcome.CHANGED) -> RunDirectory:
        run.close(self.status(run, state=RunState.FINISHED, outcome=outcome))
        return run

    def ran(self, app: str, outcome: Outcome = Outcome.CHANGED, **more: Any) -> Status:
        """Have a run of a release in the record, with a node document that names its run."""
        run = self.records.create(self.clock)
        document = {"classes": {"web": {"run": run.id}}}
        run.open(
            self.request(run, release=app, node_document=document), self.status(run, release=app)
        )
        status = self.status(run, release=app, state=RunState.FINISHED, outcome=outcome, **more)
        run.close(status)
        self.clock.advance(1800)
        return status

    def supervisors_die(self) -> None:
        self.processes.living.remove(SUPERVISOR)


def in_the_way(path: Path) -> None:
    """Make the disk refuse `path`: a directory with something in it cannot be replaced."""
    path.unlink(missing_ok=True)
    (path / "in the way").mkdir(parents=True)

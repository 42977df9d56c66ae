"""A node with real files and a Puppet that a test has written: what a `Supervisor` works on."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from localpuppet.base.formats.documents import Documents
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.formats.times import show_time
from localpuppet.base.machine.flock import Flock
from localpuppet.base.machine.ports import ProcessEnd
from localpuppet.node.enc.document import NodeDocument, ReleaseEnc
from localpuppet.node.enc.input import InputReader, LoadedInput
from localpuppet.node.puppet.command_line import ApplyCommand, Compilation, LeanStart
from localpuppet.node.puppet.installation import Installation
from localpuppet.node.releases.release import Release
from localpuppet.node.releases.release_records import Ledger
from localpuppet.node.runs.holds import Holds
from localpuppet.node.runs.options import RunOptions
from localpuppet.node.runs.preparing import PreparedRun
from localpuppet.node.runs.run import Status
from localpuppet.node.runs.run_records import GoodRuns, Records, RunDirectory
from localpuppet.node.runs.supervisor import Supervisor
from tests.doubles.ports import FakeChild, FakeClock, FakeObserver, FakeProcesses, Started

PUPPET = "/usr/bin/puppet"
APP = ReleasePath("app/tags/r1")
INPUT = {"app": APP, "classes": {"app": {"port": 80}}}
DOCUMENT = NodeDocument(classes={"app": {"port": 80}}, parameters={}, environment="production")
Life = Callable[["Site", RunDirectory, Started], FakeChild]


class NoFetch:
    """A `Fetch` that fetches nothing."""

    def get(self, url: str, *, limit: int) -> bytes:
        raise AssertionError(f"{url} is not asked for")

    def user_data(self) -> bytes:
        raise AssertionError("user data is not asked for")


NO_FETCH = NoFetch()


class Site:
    """One node, its clock, its processes, and the observer of its runs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.state = root / "var"
        self.clock = FakeClock()
        self.processes = FakeProcesses(clock=self.clock)
        self.processes.programs[PUPPET] = self._puppet
        self.observer = FakeObserver()
        self.documents = Documents(None)
        # what Puppet does when it is started; by itself it changes two resources
        self.life: Life = lambda site, run, _started: site.ends(run, 2, status="changed")
        # what the node documents of its runs were compared with
        self.fits_asked: list[tuple[NodeDocument, Release, tuple[str, ...]]] = []
        self.installation = Installation(
            command=PUPPET,
            version="7.23.0",
            settings={
                "agent_catalog_run_lockfile": str(root / "puppet/agent_catalog_run.lock"),
                "agent_disabled_lockfile": str(root / "puppet/agent_disabled.lock"),
                "certname": "web01.example.com",
                "codedir": str(root),
                "hiera_config": str(root / "hiera.yaml"),
                "libdir": str(root / "puppet/lib"),
            },
            lean=(),
        )
        self.metrics = root / "metrics.prom"
        self.after: list[tuple[str, Status]] = []
        records = Records(self.state / "runs", self.processes)
        self.parts: dict[str, Any] = {
            "state": self.state,
            "records": records,
            "good_runs": GoodRuns(self.state / "good_runs", records=records, releases=5),
            "holds": Holds(self.state / "holds", self.installation.disable_file, self.clock),
            "ledger": Ledger(self.state),
            "installation": self.installation,
            "call": self._call,
            "reports": ("store",),
            "lean_start": LeanStart(flags=(), file=root / "lean.rb"),
            "route_file": root / "routes.yaml",
            "env": {"PATH": "/bin"},
            "fork_server": None,
            "answer": lambda: None,
            "grace": 30.0,
            "min_free": 0,
            "keep_runs": 100,
            "keep_days": 30,
            "metrics": self.metrics,
            "rollback": Ledger(self.state).rollback,
            "fits": lambda *asked: self.fits_asked.append(asked),
            "variables_of_calls": {"LOCALPUPPET_SOCKET": "/run/localpuppet"},
            "sealed": lambda _release: None,
            "after_run": lambda run, status: self.after.append((run.id, status)),
        }
        self.release = Release(
            name=APP,
            directory=root / "modules" / APP,
            modulepath=(root / "modules" / APP,),
            names=(root / "modules" / APP,),
            enc=ReleaseEnc.from_dict({"classes": {"base": {}}}),
            hiera_config=None,
            mutable=(),
        )

    def change(self, **more: Any) -> None:
        """Change the node's settings."""
        self.parts |= more

    def prepared(self, *, asks_enc: bool = False, app: str = APP, **more: Any) -> PreparedRun:
        """Return a run that can be supervised; `more` are options of it."""
        path = self.root / "input.yaml"
        path.write_text(json.dumps({**INPUT, "app": app}))
        path.chmod(0o600)
        reader = InputReader(
            documents=self.documents,
            fetch=NO_FETCH,
            user_data=NO_FETCH.user_data,
            assigned=lambda: None,
        )
        loaded: LoadedInput = reader.read(str(path))
        options: dict[str, Any] = {
            "noop": False,
            "tags": None,
            "extra": (),
            "timeout": 3600.0,
            "user": "alice",
            "cause": "manual",
            **more,
        }
        return PreparedRun(
            loaded=loaded,
            release=replace(self.release, name=ReleasePath(app)),
            options=RunOptions(**options),
            document=None if asks_enc else options.get("document") or DOCUMENT,
        )

    def supervisor(self) -> Supervisor:
        return Supervisor(
            **self.parts,
            clock=self.clock,
            processes=self.processes,
            documents=self.documents,
            observer=self.observer,
        )

    def ends(
        self,
        run: RunDirectory,
        code: int,
        *,
        status: str,
        age: float = 0.0,
        output: Iterable[bytes] = (),
        failed: int = 0,
    ) -> FakeChild:
        """Return a Puppet that exits with `code` at once and leaves a report `age` seconds old."""
        time = show_time(self.clock.now() - timedelta(seconds=age))
        counts = {"total": 9, "changed": 2, "failed": failed, "out_of_sync": 2}
        report = {
            "status": status,
            "time": time,
            "metrics": {
                "resources": {"values": [[name, name, number] for name, number in counts.items()]},
                "time": {"values": [["total", "Total", 1.5]]},
            },
        }
        run.report.write_text(json.dumps(report))
        return FakeChild(output, ended=ProcessEnd(code=code, signal=None))

    def run_directory(self) -> RunDirectory:
        """Return the newest run's."""
        return RunDirectory(max((self.state / "runs").iterdir()))

    def recorded(self) -> dict[str, Any]:
        """Return the newest status.json on disk."""
        return said(self.run_directory().status)

    def applied(self) -> list[str]:
        """Return what the ledger has of the app, the newest last."""
        return list(Ledger(self.state).order("app"))

    @property
    def run_lock(self) -> Path:
        """Puppet's own lock."""
        return self.installation.run_lock

    @property
    def free(self) -> bool:
        """Whether another run could start now."""
        lock = Flock.take(self.state / "lock")
        if lock is None:
            return False
        lock.release()
        return not self.run_lock.exists()

    def _puppet(self, started: Started) -> FakeChild:
        report = Path(started.argv[started.argv.index("--lastrunreport") + 1])
        return self.life(self, RunDirectory(report.parent), started)

    def _call(
        self, installation: Installation, release: Release, environment: str, options: RunOptions
    ) -> ApplyCommand:
        return ApplyCommand(
            command=installation.command,
            compilation=Compilation(
                own_directories={},
                certname="",
                enc_script=self.root / "enc/enc.sh",
                environments=self.state / "environments",
                environment=environment,
                environment_code=release.environment_code,
                modulepath=release.modulepath,
                hiera_config=None,
                site_manifest=self.root / "default.pp",
            ),
            node_document=self.root / "node.yaml",
            noop=options.noop,
            tags=options.tags,
            extra=options.extra,
            config_version=release.config_version,
        )


def said(path: Path) -> dict[str, Any]:
    """Return the mapping in a JSON file."""
    value: dict[str, Any] = json.loads(path.read_text())
    return value


def metric(text: str, name: str) -> float:
    """Return a sample of a Prometheus textfile."""
    samples: Mapping[str, str] = dict(
        line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")
    )
    return float(samples[name])

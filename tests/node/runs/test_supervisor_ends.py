"""All ends of a supervised run: the record, and the locks of the node afterwards."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError, PuppetMissingError, StateError
from localpuppet.base.formats.names import NodeName
from localpuppet.base.machine.flock import Flock
from localpuppet.base.machine.ports import ProcessEnd
from localpuppet.node.enc.document import EncData
from localpuppet.node.enc.site_command import EncCommand
from localpuppet.node.runs.run import Outcome, RunState
from localpuppet.node.runs.run_records import RunDirectory
from tests.doubles.ports import FakeChild, Started
from tests.rigs.supervised import Life, Site, said

TERM, KILL = 15, 9
ENC = EncCommand(argv=("/usr/bin/enc",), timeout=15.0, env={})


def asks(site: Site) -> Callable[[], EncData]:
    """Return a function that asks the site's ENC for this node."""
    name = NodeName(site.installation.settings["certname"])
    return lambda: ENC.ask(name, processes=site.processes, documents=site.documents)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    made = Site(tmp_path)
    yield made
    made.processes.close()


def exits(code: int, status: str, **more: Any) -> Life:
    return lambda site, run, _started: site.ends(run, code, status=status, **more)


def lives(child: FakeChild) -> Life:
    return lambda _site, _run, _started: child


def silent(code: int, *output: bytes) -> Life:
    return lives(FakeChild(output, ended=ProcessEnd(code=code, signal=None)))


# `test_run.py` has the verdict for each exit code and report.
ENDS = {
    "unchanged": (exits(0, "unchanged"), Outcome.UNCHANGED, ""),
    "changed": (exits(2, "changed"), Outcome.CHANGED, ""),
    "failed": (exits(4, "failed", failed=1), Outcome.FAILED, "1 resource failed"),
    "no catalog": (
        silent(1, b"Error: Could not find class web\n"),
        Outcome.FAILED,
        "Puppet applied nothing: Could not find class web",
    ),
    "no report": (silent(0), Outcome.FAILED, "Puppet exited 0 but wrote no report for this run"),
    "report of another run": (
        exits(2, "changed", age=2 * 86400.0),
        Outcome.FAILED,
        "the report belongs to another run (2026-11-18T14:00:00.000000Z)",
    ),
    "killed from outside": (
        lives(FakeChild(ended=ProcessEnd(code=None, signal=KILL))),
        Outcome.FAILED,
        "signal 9 killed Puppet",
    ),
}


@pytest.mark.parametrize("name", ENDS)
def test_the_record_has_the_result_and_the_node_is_unlocked(site: Site, name: str) -> None:
    site.life, outcome, reason = ENDS[name]
    status = site.supervisor().apply(site.prepared())
    assert (status.state, status.outcome, status.reason) == (RunState.FINISHED, outcome, reason)
    assert status.puppet_started
    assert site.recorded() == status.to_dict()
    assert site.free
    assert all(child.released for child in site.processes.children)


def test_all_processes_of_a_killed_puppet_are_ended(site: Site) -> None:
    child = FakeChild(ended=ProcessEnd(code=None, signal=KILL))
    site.life = lives(child)
    site.supervisor().apply(site.prepared())
    assert child.signals == [KILL]
    site.life = exits(2, "changed")
    site.supervisor().apply(site.prepared())
    assert site.processes.children[-1].signals == [], "processes of a good run keep running"


@pytest.mark.parametrize(
    ("dies_of", "seconds"),
    [
        pytest.param([TERM, KILL], 10, id="SIGKILL is for its remaining processes"),
        pytest.param([KILL], 40, id="a Puppet that ignores SIGTERM is killed after the grace"),
    ],
)
def test_a_run_past_its_timeout_gets_signals_and_the_result_timed_out(
    site: Site, dies_of: list[int], seconds: int
) -> None:
    child = FakeChild(lasts=None, dies_of=dies_of)
    site.life = lives(child)
    begun = site.clock.monotonic()
    status = site.supervisor().apply(site.prepared(timeout=10.0))
    assert (status.outcome, status.signal) == (Outcome.TIMED_OUT, dies_of[0])
    assert status.reason == "ran longer than its timeout of 10s"
    assert child.signals[:2] == [TERM, KILL]
    assert status.seconds is not None
    assert seconds <= status.seconds <= seconds + 1
    assert status.seconds == pytest.approx(site.clock.monotonic() - begun, abs=0.01)
    assert site.free


def test_the_timeout_includes_the_enc_of_the_site(site: Site) -> None:
    site.change(answer=asks(site))
    answers = FakeChild([b"classes: {}\n"], lasts=8.0)
    site.processes.programs["/usr/bin/enc"] = lambda _started: answers
    site.life = lives(FakeChild(lasts=5.0))
    status = site.supervisor().apply(site.prepared(asks_enc=True, timeout=10.0))
    assert status.outcome is Outcome.TIMED_OUT


def test_a_success_after_the_timeout_counts_as_timed_out(site: Site) -> None:
    def life(site: Site, run: RunDirectory, _started: Started) -> FakeChild:
        site.ends(run, 2, status="changed")
        return FakeChild(ended=ProcessEnd(code=2, signal=None), lasts=12.0, dies_of=[KILL])

    site.life = life
    status = site.supervisor().apply(site.prepared(timeout=10.0))
    assert (status.outcome, status.exit_code) == (Outcome.TIMED_OUT, 2)


class Cancelling(FakeChild):
    """Runs endlessly; this process gets a request to stop after the first wait."""

    def __init__(self, site: Site, times: int, dies_of: tuple[int, ...]) -> None:
        super().__init__(lasts=None, dies_of=dies_of)
        self._site = site
        self._times = times

    def wait(self, seconds: float) -> ProcessEnd | None:
        self._site.processes.cancelled = min(self._site.processes.cancelled + 1, self._times)
        return super().wait(seconds)


def test_a_request_to_stop_cancels_the_run(site: Site) -> None:
    site.life = lambda site, _run, _started: Cancelling(site, 1, (TERM, KILL))
    status = site.supervisor().apply(site.prepared())
    assert (status.outcome, status.reason) == (Outcome.CANCELLED, "cancelled by a signal")
    assert site.processes.children[0].signals == [TERM, KILL]
    assert site.free


def test_a_second_request_to_stop_does_not_wait_for_the_grace(site: Site) -> None:
    site.life = lambda site, _run, _started: Cancelling(site, 2, (KILL,))
    begun = site.clock.monotonic()
    assert site.supervisor().apply(site.prepared()).signal == KILL
    assert site.clock.monotonic() - begun < 30


def test_a_puppet_that_survives_sigkill_keeps_the_node_locked_until_it_ends(site: Site) -> None:
    child = FakeChild(lasts=None, dies_of=[])
    site.life = lives(child)
    supervisor = site.supervisor()
    status = supervisor.apply(site.prepared(timeout=10.0))
    assert (status.outcome, status.exit_code, status.signal) == (Outcome.TIMED_OUT, None, None)
    assert "does not end after SIGKILL" in site.observer.notes[-1]
    assert site.run_lock.read_text() == str(child.identity.pid)
    assert Flock.take(site.state / "lock") is None
    assert said(site.state / "lock")["processes"][-1]["pid"] == child.identity.pid
    assert supervisor.records.orphaned(status)
    child.die(ProcessEnd(code=None, signal=KILL))
    assert supervisor.apply(site.prepared(timeout=10.0)).puppet_started, "Puppet's lock is stale"


def test_a_failed_enc_is_recorded_and_puppet_is_not_started(site: Site) -> None:
    site.change(answer=asks(site))
    site.processes.programs["/usr/bin/enc"] = lambda _started: FakeChild(
        ended=ProcessEnd(code=3, signal=None)
    )
    status = site.supervisor().apply(site.prepared(asks_enc=True))
    assert (status.outcome, status.puppet_started) == (Outcome.FAILED, False)
    assert status.reason == "enc /usr/bin/enc: exited 3; Puppet was not started"
    run = site.run_directory()
    assert said(run.status) == status.to_dict()
    assert (said(run.request)["command"], said(run.request)["user"]) == ([], "alice")
    assert run.log.read_text() == "localpuppet: enc /usr/bin/enc: exited 3\n"
    assert [started.argv[0] for started in site.processes.started] == ["/usr/bin/enc"]
    assert (site.applied(), site.free) == ([], True)
    assert site.metrics.exists(), "the metrics are written, too"


def test_the_enc_takes_precedence_between_release_and_input(site: Site) -> None:
    site.change(answer=asks(site))
    answer = b"classes: {app: {port: 1, motd: enc}, base: {by: enc}}\nenvironment: staging\n"
    site.processes.programs["/usr/bin/enc"] = lambda _started: FakeChild([answer])
    site.supervisor().apply(site.prepared(asks_enc=True))
    assert site.processes.started[0].argv == ("/usr/bin/enc", "web01.example.com")
    assert said(site.run_directory().request)["node_document"] == {
        "classes": {"base": {"by": "enc"}, "app": {"port": 80, "motd": "enc"}},
        "parameters": {},
        "environment": "staging",
    }


def test_the_enc_is_not_asked_if_the_document_is_known(site: Site) -> None:
    site.change(answer=asks(site))
    assert site.supervisor().apply(site.prepared()).outcome is Outcome.CHANGED
    assert [started.argv[0] for started in site.processes.started] == ["/usr/bin/puppet"]


def test_an_answer_of_the_enc_that_does_not_fit_is_refused_and_unlocks_the_node(site: Site) -> None:
    def refuse(*_asked: object) -> None:
        raise InvalidInputError("there is no class 'other'")

    site.change(answer=asks(site), fits=refuse)
    site.processes.programs["/usr/bin/enc"] = lambda _started: FakeChild([b"classes: [other]\n"])
    with pytest.raises(InvalidInputError, match="no class 'other'"):
        site.supervisor().apply(site.prepared(asks_enc=True))
    assert site.free


def test_a_missing_puppet_is_recorded(site: Site) -> None:
    site.change(installation=PuppetMissingError("Puppet is not installed", hint="install it"))
    status = site.supervisor().apply(site.prepared())
    assert (status.outcome, status.puppet_started) == (Outcome.FAILED, False)
    assert status.reason == "Puppet is not installed (install it); Puppet was not started"
    assert site.recorded() == status.to_dict()
    assert site.free


def test_puppet_is_not_started_in_a_run_that_was_cancelled_before(site: Site) -> None:
    site.processes.cancelled = 1
    status = site.supervisor().apply(site.prepared())
    assert (status.outcome, status.puppet_started) == (Outcome.CANCELLED, False)
    assert (site.processes.started, site.free) == ([], True)


def test_a_puppet_that_cannot_be_started_is_a_failed_run(site: Site) -> None:
    del site.processes.programs["/usr/bin/puppet"]
    with pytest.raises(StateError, match="cannot be started"):
        site.supervisor().apply(site.prepared())
    recorded = site.recorded()
    assert (recorded["outcome"], recorded["puppet_started"]) == ("failed", False)
    assert recorded["reason"].startswith("cannot supervise the run: /usr/bin/puppet")
    assert not site.run_directory().is_open
    assert (site.applied(), site.free) == ([], True)


def test_if_the_ledger_cannot_be_written_puppet_is_ended_and_then_the_run_fails(site: Site) -> None:
    (site.state / "applied.json/in the way").mkdir(parents=True)
    seen: list[str] = []

    class Watched(FakeChild):
        def end(self, *, kill: bool) -> None:
            seen.append(site.recorded()["state"])
            super().end(kill=kill)

    child = Watched(lasts=None)
    site.life = lives(child)
    with pytest.raises(StateError):
        site.supervisor().apply(site.prepared())
    assert seen == ["running"]
    recorded = site.recorded()
    assert (recorded["state"], recorded["outcome"]) == ("finished", "failed")
    assert "cannot supervise the run" in recorded["reason"]
    assert (child.signals, child.lives, child.released) == ([KILL], False, True)
    assert site.free


def test_if_the_status_cannot_be_written_the_run_reads_interrupted(site: Site) -> None:
    child = FakeChild(lasts=None)

    def life(_site: Site, run: RunDirectory, _started: Started) -> FakeChild:
        run.status.unlink()
        (run.status / "in the way").mkdir(parents=True)
        return child

    site.life = life
    supervisor = site.supervisor()
    with pytest.raises(StateError):
        supervisor.apply(site.prepared())
    assert (child.signals, child.lives, child.released) == ([KILL], False, True)
    assert supervisor.records.status(site.run_directory()).outcome is Outcome.INTERRUPTED
    assert site.free


def test_if_the_last_status_cannot_be_written_the_run_is_not_a_success(site: Site) -> None:
    class InTheWay(FakeChild):
        def wait(self, seconds: float) -> ProcessEnd | None:
            run = site.run_directory()
            run.status.unlink()
            (run.status / "in the way").mkdir(parents=True)
            return super().wait(seconds)

    def life(site: Site, run: RunDirectory, _started: Started) -> FakeChild:
        site.ends(run, 2, status="changed")
        return InTheWay(ended=ProcessEnd(code=2, signal=None))

    site.life = life
    supervisor = site.supervisor()
    with pytest.raises(StateError):
        supervisor.apply(site.prepared())
    assert supervisor.records.status(site.run_directory()).outcome is Outcome.INTERRUPTED
    assert site.processes.children[0].signals == [], "Puppet ended without a signal"
    assert site.free


def test_the_output_of_puppet_is_logged_and_shown_with_visible_escapes(site: Site) -> None:
    site.life = exits(2, "changed", output=[b"Notice: on", b"e\nNotice: \x1b[2Jtwo\nthr", b"ee"])
    site.supervisor().apply(site.prepared())
    lines = ["Notice: one", "Notice: \\x1b[2Jtwo", "three"]
    assert site.observer.lines == lines
    assert site.run_directory().log.read_text().splitlines() == lines


def test_a_puppet_that_survives_sigkill_keeps_the_lock_after_a_disk_failure(site: Site) -> None:
    (site.state / "applied.json/in the way").mkdir(parents=True)
    child = FakeChild(lasts=None, dies_of=[])
    site.life = lambda _site, _run, _started: child
    with pytest.raises(StateError):
        site.supervisor().apply(site.prepared())
    assert child.lives
    assert Flock.take(site.state / "lock") is None, (
        "a second run must not start beside a running Puppet"
    )

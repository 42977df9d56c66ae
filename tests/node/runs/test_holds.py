"""Holds: owners, deadlines, and the agreement with Puppet's agent."""

import json
import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from localpuppet.base.errors import BusyError, OnHoldError, StateError
from localpuppet.base.formats.times import show_time
from localpuppet.base.machine.ports import RunningProcess
from localpuppet.node.puppet.launching import PuppetRunLock
from localpuppet.node.runs.holds import Hold, Holds, HoldStatus, rollout_owner
from tests.doubles.ports import FakeClock, FakeProcesses


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def disable_file(tmp_path: Path) -> Path:
    return tmp_path / "agent_disabled.lock"


@pytest.fixture
def holds(tmp_path: Path, disable_file: Path, clock: FakeClock) -> Holds:
    return Holds(tmp_path / "holds", disable_file, clock)


def hold(owner: str, clock: FakeClock, until: str | None = None) -> Hold:
    return Hold(owner=owner, reason=f"for {owner}", since=show_time(clock.now()), until=until)


def test_a_hold_stops_runs_and_agents(holds: Holds, disable_file: Path, clock: FakeClock) -> None:
    holds.check()
    holds.add(hold("alice", clock))
    with pytest.raises(OnHoldError, match=r"for alice .*held by alice"):
        holds.check()
    assert "for alice" in json.loads(disable_file.read_text())["disabled_message"]
    assert [ended.owner for ended in holds.remove(None)] == ["alice"]
    holds.check()
    assert not disable_file.exists()


def test_a_hold_ends_at_its_deadline(holds: Holds, disable_file: Path, clock: FakeClock) -> None:
    until = clock.now().replace(hour=15)
    holds.add(hold("alice", clock, show_time(until)))
    clock.advance(3599)
    with pytest.raises(OnHoldError):
        holds.check()
    clock.advance(1)
    holds.settle()
    holds.check()
    assert not disable_file.exists()


def test_a_hold_from_the_future_has_a_wrong_deadline(holds: Holds, clock: FakeClock) -> None:
    """The clock was two years ahead and is correct again."""
    clock.advance(730 * 86400)
    holds.add(hold("alice", clock, show_time(clock.now() + timedelta(hours=1))))
    holds.add(hold("bob", clock))
    (wrong, endless) = holds.active()
    assert not wrong.is_misdated(clock.now())
    clock.advance(-730 * 86400)
    assert [wrong.is_misdated(clock.now()), endless.is_misdated(clock.now())] == [True, False]
    with pytest.raises(OnHoldError, match="so its deadline is wrong too and 1 more"):
        holds.check()
    clock.advance(730 * 86400 - 59)
    assert not wrong.is_misdated(clock.now()), "clocks of two machines differ a little"


def test_an_owner_cannot_end_the_hold_of_another(holds: Holds, clock: FakeClock) -> None:
    holds.add(hold("alice", clock))
    clock.advance(1)
    holds.add(hold("rollout-42", clock))
    assert [ended.owner for ended in holds.remove("alice")] == ["alice"]
    assert [active.owner for active in holds.active()] == ["rollout-42"]


def test_a_disabled_agent_is_a_hold(holds: Holds, disable_file: Path, clock: FakeClock) -> None:
    disable_file.write_text('{"disabled_message": "by \\u001b[31mhand"}')
    with pytest.raises(OnHoldError, match=r"by \\x1b\[31mhand .*puppet agent --disable"):
        holds.check()
    holds.add(hold("alice", clock))
    holds.remove("alice")
    assert disable_file.exists(), "a file of Puppet's command is kept"
    holds.remove(None)
    assert not disable_file.exists()


@pytest.mark.parametrize("text", ["not json", "{}"])
def test_a_disable_file_without_a_reason_is_a_hold_without_a_wrong_deadline(
    holds: Holds, disable_file: Path, clock: FakeClock, text: str
) -> None:
    disable_file.write_text(text)
    with pytest.raises(OnHoldError, match="no reason given"):
        holds.check()
    (found,) = holds.active()
    assert not found.is_misdated(clock.now())


@pytest.mark.parametrize(
    ("place", "problem"), [("holds/damaged.json", "damaged"), ("holds", "Not a directory")]
)
def test_broken_holds_prevent_runs(holds: Holds, tmp_path: Path, place: str, problem: str) -> None:
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_text("{")
    with pytest.raises(StateError, match=problem):
        holds.check()


def test_a_run_of_another_root_is_not_reported_as_a_run_of_a_puppet_agent(tmp_path: Path) -> None:
    path = tmp_path / "agent_catalog_run.lock"
    processes = FakeProcesses()
    lock, other = (PuppetRunLock(path, processes) for _ in range(2))
    processes.command_lines[os.getpid()] = ["/usr/bin/python3", "-m", "localpuppet", "apply"]
    other.take()
    with pytest.raises(BusyError) as refused:
        lock.take()
    what = "a run of another localpuppet root (pid {}{}) is using this node"
    assert refused.value.what == what.format(os.getpid(), ""), "before it starts Puppet"
    processes.command_lines[4242] = [
        *("/usr/bin/ruby", "/usr/bin/puppet", "apply"),
        *("--route_file", "/usr/lib/localpuppet/share/routes.yaml"),
        *("--lastrunreport", "/srv/b/var/runs/20261120T140312.482913Z-7f3a/report.json"),
    ]
    other.hand_to(4242)
    with pytest.raises(BusyError) as refused:
        lock.take()
    record = ", recorded in /srv/b/var/runs/20261120T140312.482913Z-7f3a"
    assert refused.value.what == what.format(4242, record)
    other.release()
    lock.take()
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name], "no temporary file is left"


@pytest.mark.parametrize(
    ("name", "words", "holds"),
    [
        ("ruby", "ruby /usr/bin/puppet agent", True),
        ("ruby3.1", "puppet agent: applying configuration", True),
        ("puppet", "/usr/bin/ruby /usr/bin/puppet apply", True),
        ("puppet-agent", "puppet-agent", True),
        ("tail", "tail -f puppet.log", False),
        ("ruby", "ruby /usr/bin/r10k deploy", False),
        ("puppetserver", "puppetserver", False),
        ("localpuppet", "/usr/bin/python3 /usr/bin/localpuppet agent", False),
        ("python3", "python3 -m localpuppet agent", False),
        ("puppet", "/usr/bin/ruby /usr/bin/puppet --version", False),  # the agent's fork server
    ],
)
def test_a_lock_is_held_by_the_process_that_puppets_own_rule_accepts(
    tmp_path: Path, name: str, words: str, holds: bool
) -> None:
    path = tmp_path / "agent_catalog_run.lock"
    path.write_text("4242")
    processes = FakeProcesses()
    lock = PuppetRunLock(path, processes)
    at = path.stat().st_mtime
    process = RunningProcess(name=name, words=words.split(), started_at=at - 9)
    processes.running[4242] = process
    if holds:
        with pytest.raises(BusyError, match="pid 4242"):
            lock.refuse_held()
        processes.running[4242] = replace(process, started_at=at + 9)  # a reused pid
    lock.refuse_held()
    lock.take()
    assert path.read_text() == str(os.getpid())


@pytest.mark.parametrize("content", ["4242", "", "rubbish"])
def test_a_stale_lock_is_taken_over(tmp_path: Path, content: str) -> None:
    path = tmp_path / "agent_catalog_run.lock"
    processes = FakeProcesses()
    processes.command_lines[4242] = ["/usr/sbin/nginx"]
    path.write_text(content)
    lock = PuppetRunLock(path, processes)
    lock.take()
    lock.hand_to(99)
    assert path.read_text() == "99"
    lock.release()
    assert not path.exists()


def test_a_lock_that_another_process_has_taken_over_is_not_removed(tmp_path: Path) -> None:
    path = tmp_path / "agent_catalog_run.lock"
    lock = PuppetRunLock(path, FakeProcesses())
    lock.take()
    path.write_text("4242")
    lock.release()
    assert path.read_text() == "4242"


def test_a_rollout_passes_only_its_own_hold(holds: Holds, clock: FakeClock) -> None:
    mine = rollout_owner("choria=alice", "r1")
    holds.add(hold(mine, clock))
    holds.check(through=mine)
    with pytest.raises(OnHoldError):
        holds.check()
    with pytest.raises(OnHoldError, match="for choria=alice/rollout/r1"):
        holds.check(through=rollout_owner("choria=alice", "r2"))
    holds.add(hold("bob", clock))
    with pytest.raises(OnHoldError, match="for bob"):
        holds.check(through=mine)


def test_the_status_of_holds_names_rollouts_and_whether_only_they_hold(clock: FakeClock) -> None:
    mine = hold(rollout_owner("choria=alice", "r1"), clock)
    other = hold(rollout_owner("choria=bob", "r2"), clock)
    person = hold("bob", clock)
    assert HoldStatus.by([]) is None
    assert HoldStatus.by([mine]) == HoldStatus(
        reason=str(mine), rollouts=frozenset([mine.owner]), alone=True
    )
    both = HoldStatus.by([mine, person])
    assert both == HoldStatus(reason=str(person), rollouts=frozenset([mine.owner]), alone=False)
    two = HoldStatus.by([mine, other])
    assert two is not None
    assert not two.alone
    assert HoldStatus.by([person]) == HoldStatus(reason=str(person))

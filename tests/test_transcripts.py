"""Golden transcripts: the help, tables and errors of commands, in process, at 80 columns.

A difference is no fault by itself: it shows what a change does to what people read. Read it, then
run the tests with LOCALPUPPET_RECORD=1, which writes the files of tests/data/transcripts again.
"""

import json
import os
import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace
from difflib import unified_diff
from pathlib import Path

import pytest
from click.testing import CliRunner

from localpuppet.base.formats.names import RolloutId
from localpuppet.main import main
from localpuppet.node.cli import render
from localpuppet.node.runs.run import Outcome
from localpuppet.rollout.events import (
    NodeResult,
    NodeRun,
    NodeRunEnded,
    NodeRunsStarted,
    RolloutEnded,
    RolloutEnding,
)
from localpuppet.rollout.journal import Journals
from tests.rigs.commands import COMMANDS
from tests.rigs.recorded import Recorded
from tests.rollout.make import began
from tests.rollout.make import node as numbered

DATA = Path(__file__).parent / "data" / "transcripts"
AT = "2026-11-22T11:00:00.000000Z"
REPORT = {
    "resource_statuses": {
        "File[/etc/motd]": {
            "resource": "File[/etc/motd]",
            "file": "/etc/puppet/modules/app/tags/r2/motd/manifests/init.pp",
            "line": 3,
            "failed": True,
            "changed": False,
            "evaluation_time": 0.012,
            "events": [{"status": "failure", "property": "content", "message": "no space left"}],
        },
        "Service[nginx]": {
            "resource": "Service[nginx]",
            "changed": True,
            "evaluation_time": 1.5,
            "events": [
                {"status": "success", "property": "ensure", "message": "stopped to running"}
            ],
        },
    }
}
TABLES = """
status
status --json
history
history --limit 1
logs
report
why
rollout list
rollout status
rollout report
rollout plan --site site.yaml
rollout plan --site site.yaml --json
release list
nodes
query ''
"""
ERRORS = """
aply
keys trsut
status --wate
status zzzz
logs --limit 0
disable
rollout status 20261122T110000Z-ffff
rollout run --site nowhere.yaml
release tag
query 'os.family=='
assign web01.example.com
lookup
web --no-dashboard
"""


def printed(words: Iterable[str], *, root: Path) -> str:
    """Return what a command prints on both streams, and its exit code if that is not 0."""
    env = {"COLUMNS": "80", "LOCALPUPPET_ROOT": str(root), "USER": "alice", "SUDO_USER": None}
    with CliRunner().isolation(env=env) as (out, err, _):
        code = main([*words])
        shown = out.getvalue() + (err.getvalue() if err else b"")
    text = shown.decode().replace(str(root), "/etc/puppet")
    return text + (f"[exit {code}]\n" if code else "")


def steady(text: str, runs: Iterable[str]) -> str:
    """Return a text without what differs from day to day: ends of ids, moments and ages."""
    for number, run in enumerate(runs, 1):
        text = text.replace(run, f"{run[:23]}-000{number}")
        text = re.sub(rf"(?<![\w-]){run[-4:]}(?!\w)", f"000{number}", text)
    text = re.sub(r"(?:\d+[dhms] ?)+ago", "AGE ago", text)
    return re.sub(r"202\d-(?!11-2[02])\d\d-\d\d[T ][\d:.]+( UTC|Z)?", "MOMENT", text)


def transcript(calls: Iterable[str], *, root: Path) -> str:
    parts = [f"$ localpuppet {call}\n{printed(shlex.split(call), root=root)}" for call in calls]
    return steady("\n".join(parts), sorted(run.name for run in (root / "var/runs").glob("2*Z-*")))


def compare(name: str, text: str) -> None:
    file = DATA / f"{name}.txt"
    if os.environ.get("LOCALPUPPET_RECORD"):
        DATA.mkdir(exist_ok=True)
        file.write_text(text, "utf-8")
    kept = file.read_text("utf-8") if file.exists() else ""
    changed = unified_diff(kept.splitlines(), text.splitlines(), "kept", "now", lineterm="")
    assert "\n".join(changed) == ""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A root with three runs, of which the newest failed, and a finished rollout."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(render, "columns", lambda: 80)
    settings = {"bus": "sqlite", "node": "web01.example.com", "puppet": {"confdir": "puppet"}}
    (tmp_path / "localpuppet.yaml").write_text(json.dumps(settings))
    (tmp_path / "site.yaml").write_text(
        "applications:\n  shop:\n"
        "    db: {node: db01.example.com, produces: [sql/shop]}\n"
        "    web: {node: web01.example.com, consumes: [sql/shop]}\n"
    )
    recorded = Recorded(tmp_path / "var")
    recorded.ran("app/tags/r1")
    recorded.ran("app/tags/r1", Outcome.UNCHANGED)
    failed = recorded.ran("app/tags/r2", Outcome.FAILED, reason="1 resource failed")
    run = recorded.records.get(failed.id)
    run.report.write_text(json.dumps(REPORT))
    run.log.write_text("Notice: Compiled catalog\nError: /Stage[main]/File[/etc/motd]: no space\n")
    first = replace(began([1, 2], [3]), caller="choria=web01.example.com", title="site.yaml")
    journal = Journals(tmp_path / "var" / "rollouts").begin(
        replace(first, id=RolloutId("20261122T110000Z-0123")), at=AT
    )
    turns = NodeRun(1, numbered(1)), NodeRun(1, numbered(2))
    journal.append(
        NodeRunsStarted(node_runs=turns),
        NodeRunEnded(node_run=turns[0], result=NodeResult.SUCCEEDED, outcome="changed", run="r1"),
        NodeRunEnded(node_run=turns[1], result=NodeResult.FAILED, outcome="failed", run="r2"),
        RolloutEnded(ending=RolloutEnding.FAILED, reason="1 node failed", still_held={}),
        at=AT,
    )
    journal.close()
    yield tmp_path


def test_help(root: Path) -> None:
    names = [name for name, command in COMMANDS.items() if not command.hidden]
    compare("help", transcript((f"{name} --help".strip() for name in names), root=root))


def test_tables(root: Path) -> None:
    compare("tables", transcript(TABLES.strip().splitlines(), root=root))


def test_errors(root: Path) -> None:
    compare("errors", transcript(ERRORS.strip().splitlines(), root=root))

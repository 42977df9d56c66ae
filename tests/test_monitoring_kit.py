"""The alert rules and the board in the examples, checked with Prometheus' own promtool."""

import json
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from localpuppet.node.runs import metrics_file
from localpuppet.rollout import rollout_report
from localpuppet.web.hooks import hook_worker
from localpuppet.web.notify import notifier

KIT = Path(__file__).parents[1] / "docs" / "examples" / "prometheus"
RULES, TESTS = KIT / "localpuppet.rules.yml", KIT / "localpuppet.rules.test.yml"
METRIC = re.compile(r"localpuppet_\w+")


@pytest.fixture(scope="module")
def promtool(clients: Path) -> Path:
    return clients / "promtool"


def run(promtool: Path, *words: str, cwd: Path = KIT) -> tuple[int, str]:
    done = subprocess.run(
        [promtool, *words], cwd=cwd, capture_output=True, text=True, check=False, timeout=60
    )
    return done.returncode, done.stdout + done.stderr


def rules() -> list[dict[str, str]]:
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return [rule for group in groups for rule in group["rules"]]


def expressions() -> list[str]:
    board = json.loads((KIT / "grafana.json").read_text())
    shown = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    return [*(rule["expr"] for rule in rules()), *shown]


def test_the_rules_fire_for_failing_and_late_nodes_and_end_when_they_recover(
    promtool: Path,
) -> None:
    assert run(promtool, "check", "rules", RULES.name)[0] == 0
    code, out = run(promtool, "test", "rules", TESTS.name)
    assert (code, out.split()[-1]) == (0, "SUCCESS")


@pytest.mark.parametrize("change", ["never fires", "always fires"])
def test_each_rule_is_tested(promtool: Path, tmp_path: Path, change: str) -> None:
    (tmp_path / TESTS.name).write_text(TESTS.read_text())
    document = yaml.safe_load(RULES.read_text())
    for rule in (rule for group in document["groups"] for rule in group["rules"]):
        rule["expr"] = f"({rule['expr']}) * 0 == 1" if change == "never fires" else "vector(1)"
    (tmp_path / RULES.name).write_text(yaml.safe_dump(document))
    code, text = run(promtool, "test", "rules", TESTS.name, cwd=tmp_path)
    failed = {*re.findall(r"alertname: *(\w+)", text)}
    assert (code, failed) == (1, {rule["alert"] for rule in rules()})


def test_rules_and_board_ask_only_for_metrics_that_exist() -> None:
    parts = (metrics_file, rollout_report, notifier, hook_worker)
    known = {name for part in parts for name in part._HELP}
    asked = {name for text in expressions() for name in METRIC.findall(text)}
    assert asked - known == set()
    assert known - asked <= {
        "localpuppet_fork_server_resident_memory_bytes",
        "localpuppet_hook_delivery_timestamp_seconds",
        "localpuppet_hook_refused",
        "localpuppet_last_rollout_duration_seconds",
        "localpuppet_last_rollout_end_timestamp_seconds",
        "localpuppet_last_rollout_noop",
        "localpuppet_last_rollout_resumptions",
        "localpuppet_last_rollout_success",
        "localpuppet_last_rollout_success_timestamp_seconds",
        "localpuppet_last_run_outcome",
        "localpuppet_last_run_warm",
        "localpuppet_last_run_work_tree",
        "localpuppet_notify_channel_waiting",
        "localpuppet_notify_incidents",
        "localpuppet_notify_look_timestamp_seconds",
        "localpuppet_notify_sender",
    }


def test_promtool_parses_what_the_board_asks(promtool: Path, tmp_path: Path) -> None:
    asked = [text.replace("$job", ".+") for text in expressions()]
    written = [{"record": f"asked:{number}", "expr": text} for number, text in enumerate(asked)]
    document = {"groups": [{"name": "board", "rules": written}]}
    (tmp_path / "board.yml").write_text(yaml.safe_dump(document))
    code, text = run(promtool, "check", "rules", "board.yml", cwd=tmp_path)
    assert (code, f"{len(asked)} rules found" in text) == (0, True), text


def test_the_reference_lists_each_alert() -> None:
    page = (KIT.parents[1] / "reference" / "metrics.md").read_text()
    assert [rule["alert"] for rule in rules()] == re.findall(r"^\| `(Localpuppet\w+)`", page, re.M)

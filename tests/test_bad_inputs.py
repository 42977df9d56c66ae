"""The corpus of bad inputs: each runs through the command line under a memory limit.

`tests/data/bad-inputs.yaml` defines for each case whether it is accepted and what the message must
name. Kinds and verbs that do not exist yet are listed, and wait for the issues that add them.
"""

import base64
import json
import re
import resource
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.rigs.bad_inputs import CASES
from tests.rigs.limited import limited
from tests.rigs.node import COMMAND, REPOSITORY, Done, Node

KINDS = ("input_yaml", "manifest_yaml", "node_name", "enc_output", "cli")
# Verbs of later issues, which no command runs yet.
LATER = {"cl-batch-zero": "orchestrate"}
PWNED = Path("/tmp/localpuppet-pwned")  # the path that the corpus uses
# CPU time, which other work on the machine at most doubles.
SECONDS = 60


def cases(kind: str) -> list[Any]:
    found = [case for case in CASES if case["kind"] == kind and case["id"] not in LATER]
    return [pytest.param(case, id=case["id"]) for case in found]


def content(case: dict[str, Any]) -> bytes:
    if case.get("encoding") == "base64":
        return base64.b64decode(case["input"])
    if case.get("encoding") == "python":
        return str(eval(case["input"])).encode()  # noqa: S307 - a file of this repository
    return str(case["input"]).encode()


def run_limited(node: Node, arguments: list[str]) -> Done:
    """Run the program with at most 200 MB of address space and `SECONDS` of CPU time."""
    env = node.environment(PYTHONPATH=str(REPOSITORY))
    return limited(command=[*COMMAND, *arguments], seconds=SECONDS, cwd="/", env=env)


def tree(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def judge(case: dict[str, Any], done: Done) -> None:
    assert not PWNED.exists()
    assert "Traceback" not in done.err
    assert "bug in localpuppet" not in done.err
    if case["expect"] == "accept":
        assert done.code == 0, done.err
        return
    assert done.code != 0
    lines = done.err.splitlines()
    assert len(lines) == 1, done.err
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lines[0])
    assert re.search(case["message"], lines[0], re.IGNORECASE), lines[0]


def cpu_seconds(action: Any) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    action()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime - before.ru_utime) + (after.ru_stime - before.ru_stime)


@pytest.mark.parametrize("case", cases("input_yaml"))
def test_input(node: Node, case: dict[str, Any]) -> None:
    shutil.copytree(node.root / "modules/foo", node.root / "modules/foo..bar")
    (node.root / "input.yaml").write_bytes(content(case))
    before = tree(node.root)
    limit = case.get("max_seconds", 5)
    results: list[Done] = []
    spent = cpu_seconds(lambda: results.append(run_limited(node, ["check"])))
    judge(case, results[0])
    assert results[0].code in (0, 2)
    assert tree(node.root) == before, "check writes nothing"
    assert spent < limit, "CPU time, which a busy machine does not lengthen"
    if case["expect"] == "reject":
        refused = node.run("apply", code=2)
        assert refused.err == results[0].err
        after = tree(node.root)
        (attempt,) = (name for name in after if name.startswith(f"{node.state}/attempts/"))
        assert json.loads(after.pop(attempt))["refusal"] == "invalid_input"
        assert (
            "localpuppet_last_attempt_refused" in after.pop(f"{node.state}/metrics.prom").decode()
        )
        assert after.pop(f"{node.state}/kept.lock") == b"", "for gc to wait"
        assert after == before, "a refused input leaves nothing behind but the attempt"


@pytest.mark.parametrize("case", cases("manifest_yaml"))
def test_manifest(node: Node, case: dict[str, Any]) -> None:
    for number in range(1, 10):
        (node.root / f"modules/d{number}/t").mkdir(parents=True)
    if "immutable_only=true" in case.get("context", ""):
        node.settings(immutable_only=True)
    node.write("input.yaml", "app: foo/tags/r1\nclasses: [foo]\n")
    (node.root / "modules/foo/tags/r1/manifest.yaml").write_bytes(content(case))
    before = tree(node.root)
    done = run_limited(node, ["check"])
    judge(case, done)
    assert tree(node.root) == before
    if case["expect"] == "reject":
        assert "manifest.yaml" in done.err


@pytest.mark.parametrize("case", cases("node_name"))
def test_node_name(node: Node, case: dict[str, Any]) -> None:
    judge(case, run_limited(node, ["enc", str(case["input"])]))


@pytest.mark.parametrize("case", cases("enc_output"))
def test_enc_output(node: Node, case: dict[str, Any]) -> None:
    node.write("answer", "").write_bytes(content(case))
    exit_code = (re.search(r"exit (\d+)", case.get("context", "")) or ["", "0"])[1]
    script = f"#!/bin/sh\ncat {node.root}/answer\nexit {exit_code}\n"
    sleeps = case["input"] == "SLEEP_FOREVER"
    if sleeps:
        script = "#!/bin/sh\nexec sleep 600\n"
    command = node.write("enc.sh", script, 0o755)
    node.settings(enc=str(command), timeouts={"enc": 5 if sleeps else 300})
    judge(case, run_limited(node, ["enc", "web01.example.net"]))


@pytest.mark.parametrize("case", cases("cli"))
def test_cli(node: Node, case: dict[str, Any]) -> None:
    text = content(case).decode()
    writable = Path("/tmp/localpuppet-ww.yaml")
    writable.write_text("app: foo/trunk\nclasses: {}\n")
    writable.chmod(0o666)
    try:
        done = run_limited(node, json.loads(text))
    finally:
        writable.unlink()
    if case["id"] == "cl-noverb":
        assert done.code == 2
        assert "Usage:" in done.err
        assert node.runs() == []
        return
    judge(case, done)
    if case["id"] == "cl-status-ok":
        assert done.json["run"] is None
    else:
        assert done.code == 2


def test_every_case_of_the_listed_kinds_runs_or_is_named() -> None:
    mine = [case for case in CASES if case["kind"] in KINDS]
    assert len(mine) == 62
    for name, verb in LATER.items():
        case = next(case for case in mine if case["id"] == name)
        assert json.loads(case["input"])[0] == verb
        assert not (REPOSITORY / "localpuppet/cli" / f"{verb}.py").exists()

"""The scripts of the example pipelines, run in a clone as a forge runs them."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.node.cli.preview.control import ControlRepository
from tests.rigs.node import PATIENCE, REPOSITORY, Node

EXAMPLES = REPOSITORY / "docs/examples/preview"


def commit(control: ControlRepository, name: str) -> str:
    done = subprocess.run(
        ["git", "rev-parse", name], cwd=control.path, capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


def scripts(name: str) -> dict[str, str]:
    """Return the scripts of an example: `compare`, `fill the cache` and `comment`."""
    pipeline: dict[str, Any] = yaml.safe_load((EXAMPLES / name).read_text())
    if "jobs" in pipeline:
        steps = pipeline["jobs"]["preview"]["steps"]
        return {
            **{step["name"]: step["run"] for step in steps if "name" in step},
            "comment": pipeline["jobs"]["comment"]["steps"][-1]["run"],
        }
    start = pipeline[".localpuppet"]["before_script"][1:]
    return {
        "compare": "\n".join([*start, *pipeline["preview"]["script"]]),
        "fill the cache": "\n".join([*start, *pipeline["fill"]["script"]]),
        "comment": "\n".join(pipeline["comment"]["script"]),
    }


def run_script(
    script: str, *, directory: Path, env: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a script of a pipeline as a forge's runner does."""
    return subprocess.run(
        ["/bin/bash", "-eo", "pipefail", "-c", script],
        cwd=directory,
        env=env,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )


def compare_hostile(
    control: ControlRepository, node: Node, name: str
) -> subprocess.CompletedProcess[str]:
    """Run a pipeline's script `compare` for a pull request that brings a cache."""
    control.commit({"ci/localpuppet.yaml": "{}\n", "preview-cache/mark.key": "0\n"}, "hostile")
    base = commit(control, "exporter")
    env = node.environment(
        HOME=str(control.path.parent),
        BASE=base,
        HEAD=base,
        CI_MERGE_REQUEST_DIFF_BASE_SHA=base,
        CI_COMMIT_SHA=base,
    )
    return run_script(scripts(name)["compare"], directory=control.path, env=env)


def test_github_and_gitea_run_the_same_scripts() -> None:
    github, gitea = scripts("github.yml"), scripts("gitea.yml")
    for step in ("fill the cache", "compare"):
        assert github[step] == gitea[step]


def plain(text: str) -> str:
    """Return shell text without quotes, continued lines and spaces of its layout."""
    return re.sub(r"\s+", " ", re.sub(r"\\\n|['\"]", "", text)).replace("> ", ">")


@pytest.mark.parametrize("name", ["github.yml", "gitlab-ci.yml", "gitea.yml", "../gitlab-ci.yml"])
def test_a_pipeline_installs_from_a_repository_as_the_page_about_installing_says(name: str) -> None:
    text = (EXAMPLES / name).read_text()
    (repository,) = re.findall(r"\bPACKAGES: (\S+)", text)
    page = (REPOSITORY / "docs/start/install.md").read_text()
    (commands,) = re.findall(r"```sh\n(curl [^`]*?)\napt update && apt install", page)
    assert repository in commands
    assert plain(commands) in plain(text.replace("$PACKAGES", repository))


@pytest.mark.parametrize("name", ["github.yml", "gitlab-ci.yml"])
def test_a_pipeline_previews_a_branch(node: Node, tmp_path: Path, name: str) -> None:
    control = ControlRepository(tmp_path)
    control.git("checkout", "-q", "main")
    control.nodes.rename(control.path / "nodes")
    control.commit({"ci/localpuppet.yaml": "{}\n"}, "settings and captures")
    control.git("checkout", "-q", "exporter")
    control.git("rebase", "-q", "main")
    # Settings of the branch would run a program outside the isolation; a capture has facts.
    hostile = {"ci/localpuppet.yaml": "puppet: {command: /bin/false}\n"}
    control.commit({**hostile, "nodes/web01.example.com.yaml": "facts: {role: db}\n"}, "hostile")
    program = tmp_path / "bin/localpuppet"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m localpuppet "$@"\n')
    program.chmod(0o755)
    base, head = (commit(control, revision) for revision in ("main", "exporter"))
    env = node.environment(
        PYTHONPATH=str(REPOSITORY),
        HOME=str(tmp_path),
        PATH=f"{program.parent}:{os.environ['PATH']}",
        BASE=base,
        HEAD=head,
        CI_MERGE_REQUEST_DIFF_BASE_SHA=base,
        CI_COMMIT_SHA=head,
    )
    codes = []
    for step, branch in (("fill the cache", "main"), ("compare", "exporter")):
        control.git("checkout", "-q", branch)
        done = run_script(scripts(name)[step], directory=control.path, env=env)
        codes.append(done.returncode)
        assert not done.stderr, done.stderr
    assert codes == [0, 1], "db01 fails to compile with the branch"
    assert "modules/role/manifests/db.pp:1" in (control.path / "preview.md").read_text()
    assert "nginx-exporter" in (control.path / "preview.html").read_text()
    text = (control.path / "preview.md").read_text()
    assert "`web01.example.com`, `web02.example.com`" in text, "the capture is that of the base"


@pytest.mark.parametrize("name", ["github.yml", "gitlab-ci.yml"])
def test_a_pull_request_brings_no_cache(node: Node, tmp_path: Path, name: str) -> None:
    control = ControlRepository(tmp_path)
    done = compare_hostile(control, node, name)
    assert (done.returncode, done.stdout) == (1, "preview-cache/mark.key\n"), done.stderr


@pytest.mark.parametrize("name", ["github.yml", "gitlab-ci.yml"])
def test_a_link_of_a_pull_request_is_never_published(node: Node, tmp_path: Path, name: str) -> None:
    """Also if the preview ends before it writes the files."""
    control = ControlRepository(tmp_path)
    secret = tmp_path / "secret"
    secret.write_text("hunter2")
    links = [control.path / file for file in ("preview.md", "preview.html")]
    for link in links:
        link.symlink_to(secret)
    done = compare_hostile(control, node, name)
    assert done.returncode == 1
    assert [link for link in links if link.is_symlink()] == []
    assert secret.read_text() == "hunter2"


@pytest.mark.parametrize("name", ["github.yml", "gitlab-ci.yml", "gitea.yml"])
@pytest.mark.parametrize("kind", ["missing", "link"])
def test_without_a_preview_the_comment_job_says_so_and_ends(
    tmp_path: Path, name: str, kind: str
) -> None:
    if kind == "link":
        (tmp_path / "secret").write_text("hunter2")
        (tmp_path / "preview.md").symlink_to(tmp_path / "secret")
    # Without PATH: it starts no program.
    done = run_script(scripts(name)["comment"], directory=tmp_path, env={"PATH": ""})
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "preview.md: not written (see the log of the job 'preview')\n"


@pytest.mark.parametrize("name", ["github.yml", "gitea.yml"])
def test_a_job_with_code_of_a_pull_request_has_no_secret(name: str) -> None:
    pipeline = yaml.safe_load((EXAMPLES / name).read_text())
    job = yaml.safe_dump(pipeline["jobs"]["preview"])
    assert "secrets." not in job
    assert "github.token" not in job
    assert "actions/cache@" not in job, "the action would save the cache of a pull request"
    saves = [
        step for step in pipeline["jobs"]["preview"]["steps"] if "save" in step.get("uses", "")
    ]
    assert [step["if"] for step in saves] == ["github.event_name == 'push'"]
    assert "pull_request_target" not in (EXAMPLES / name).read_text()

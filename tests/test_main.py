"""The program: how it loads, and the one line with the place of an unexpected error."""

import os
import re
import sys

import pytest

from localpuppet.base.errors import ROOT_HINT
from localpuppet.main import report_unexpected
from localpuppet.node.releases.git.git_modules import Pin
from tests.rigs.node import REPOSITORY, Node, completed

LOADING = """
import click, gc
from localpuppet.__main__ import main
from localpuppet.main import cli
print(gc.isenabled())
cli.get_command(click.Context(cli), "status")
print(gc.isenabled(), gc.get_freeze_count() > 0)
"""


def test_the_program_loads_without_garbage_collection_and_its_commands_run_with_it() -> None:
    assert completed(sys.executable, "-c", LOADING, cwd=REPOSITORY).out == "False\nTrue True\n"


def test_an_unexpected_error_is_one_line_with_its_place_in_localpuppet(
    capsys: pytest.CaptureFixture[str],
) -> None:
    try:
        Pin.from_dict({}, where="", allow_file=False)  # like a bug: no caller expects the error
    except KeyError as error:
        code = report_unexpected(error)
    (line,) = capsys.readouterr().err.splitlines()
    place = r"KeyError: '\w+', at localpuppet/node/releases/git/git_modules\.py:\d+"
    assert code == 70
    assert re.search(rf"{place} \(LOCALPUPPET_TRACEBACK=1", line), line


def test_an_unexpected_error_of_other_code_has_no_place_in_localpuppet(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert report_unexpected(KeyError("app02")) == 70
    assert "KeyError: 'app02' (LOCALPUPPET_TRACEBACK=1" in capsys.readouterr().err


def test_a_failure_to_start_a_thread_is_not_reported_as_a_bug(node: Node) -> None:
    """The stack of a thread is larger than the memory limit of the process."""
    limits = 'ulimit -s 8000000; ulimit -v 4000000; exec "$0" "$@"'
    node.settings(bus="sqlite")
    node.inside = ["/bin/sh", "-c", limits]
    refused = node.run("query", "role=web", code=1)
    assert "cannot start a thread: this machine's limit of processes or memory" in refused.err
    assert "bug" not in refused.err


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_no_output_has_a_command_for_the_runner_of_a_ci_job(encoding: str) -> None:
    code = (
        "import sys, click; from localpuppet.main import main; main(['--version'])\n"
        "for err in (False, True): click.echo('a\\n  ::error::x\\n##[error]é', err=err)\n"
        "sys.stdout.writelines(['::', 'b::']); print('::', 'c::', sep='', file=sys.stderr)"
    )
    env = {**os.environ, "PYTHONIOENCODING": encoding}
    done = completed(sys.executable, "-c", code, env=env, encoding="utf-8", cwd=REPOSITORY)
    for text in (done.out, done.err):
        assert not re.search(r"^\s*::|##\[", text, re.MULTILINE), text
        assert "error" in text


def test_a_missing_permission_has_the_cure_of_all_commands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert report_unexpected(PermissionError(13, "Permission denied", "/var/x")) == 1
    assert f"/var/x: Permission denied ({ROOT_HINT})" in capsys.readouterr().err

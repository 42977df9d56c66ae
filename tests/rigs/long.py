"""A pytest plugin: leaves long proofs, which have the mark `long`, to `scripts/slow` (`--long`).

The last lines of a session have the number of tests that it left out.

    @pytest.mark.parametrize("number", [2, *(pytest.param(n, marks=LONG) for n in (1, 3, 4))])
"""

from collections.abc import Iterable
from typing import Any

import pytest

LONG = pytest.mark.long
LEFT = pytest.StashKey[int]()


def with_sample(every: Iterable[Any], *sample: Any) -> list[Any]:
    """Return all parameters of a test; those beside the sample are left to `scripts/slow`."""
    cases = list(every)
    assert set(sample) <= set(cases), "the sample names a case that does not exist"
    return [
        case
        if case in sample
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=LONG)
        for case in cases
    ]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--long`."""
    parser.addoption("--long", action="store_true", help="run the long proofs, too")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the long proofs."""
    if config.getoption("--long"):
        return
    left = [item for item in items if item.get_closest_marker("long")]
    config.hook.pytest_deselected(items=left)
    config.stash[LEFT] = len(left)
    items[:] = [item for item in items if not item.get_closest_marker("long")]


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Report the number to the process that prints the summary."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["left_to_slow"] = session.config.stash.get(LEFT, 0)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take the number from a process of pytest-xdist; each collects all tests."""
    output = getattr(node, "workeroutput", {})
    stash = node.config.stash
    stash[LEFT] = max(stash.get(LEFT, 0), output.get("left_to_slow", 0))


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    """Print how many tests were left out."""
    if left := config.stash.get(LEFT, 0):
        terminalreporter.write_line(f"{left} long tests are left to scripts/slow")

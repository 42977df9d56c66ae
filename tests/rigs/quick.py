"""A pytest plugin: marks tests that need Puppet, a server or time, and runs the others (`--quick`).

- A test gets a mark of `NEEDS` from what it shows: its fixtures with their parameters, the names in
  its module, its directory. A test that shows too little has the mark in its own file.
- `--quick` leaves out the tests with such a mark.
- A test of a quick session fails if it starts one of `PROGRAMS` or of `SERVICES`. A missing mark is
  therefore an error and never a slow test.
- A property tries a quarter of the examples that it has in the whole suite (`examples`).

    scripts/test --quick tests/rollout
"""

import functools
import os
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Generator
from itertools import pairwise
from pathlib import Path
from typing import Any

import hypothesis
import pytest

NEEDS = {
    "puppet": {"puppet_probe", "bench"},
    "server": {
        *("EtcdServer", "NatsServer", "etcd_cluster", "nats_cluster", "ServerEngine"),
        "Alertmanager",
        *("engine=etcd", "engine=nats", "engine=nats-debian", "served", "driver"),
        *("lossy=etcd", "lossy=nats", "lossy=nats-debian"),
        *("browser/", "platforms/", "scenarios/"),
    },
    # Machines that boot, fleets of nodes, browsers, environments that pip fills, samples of proofs
    # that run in full at night.
    "slow": {"browser/", "platforms/", "scenarios/", "driver", "crash_points", "clients"},
}
# Seconds that a test with a mark takes, roughly: files that take long begin first. A mark may have
# its own: `slow(seconds=300)`.
SECONDS = {"puppet": 3.0, "server": 1.0, "slow": 15.0}
PROGRAMS = {"chromedriver", "chromium-headless-shell", "etcd", "nats-server", "puppet", "ruby"}
# Commands of localpuppet that run until a signal ends them.
SERVICES = {"agent", "web"}
# Of a property, in per cent of those in the whole suite.
QUICK_EXAMPLES = 25
# A refused program notes that it was started.
REFUSED = '#!/bin/sh\necho "$0 $*" >>"${0%/*}/started"\nexit 97\n'
CURE = "mark the test 'puppet', 'server' or 'slow', or name in NEEDS what it shows"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--quick`."""
    text = "leave out the tests that need Puppet or a server, and the slow ones"
    parser.addoption("--quick", action="store_true", help=text)


def pytest_configure(config: pytest.Config) -> None:
    """Begin a quick session if the option asks for one."""
    if config.getoption("--quick"):
        config.pluginmanager.register(QuickSession())
        hypothesis.settings.register_profile("quick", max_examples=QUICK_EXAMPLES)
        hypothesis.settings.load_profile("quick")


def examples(number: int, **more: Any) -> hypothesis.settings:
    """Return the settings of a property that tries up to `number` examples in the whole suite."""
    return hypothesis.settings(
        max_examples=hypothesis.settings().max_examples * number // 100, **more
    )


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark each test with what it needs, and begin with the files that take long.

    Each file runs in one process of pytest-xdist: a long file at the end would run alone.
    """
    seconds: defaultdict[Path, float] = defaultdict(float)
    for item in items:
        shown = _shown_by(item)
        for mark in (mark for mark, names in NEEDS.items() if names & shown):
            item.add_marker(mark)
        seconds[item.path] += sum(
            mark.kwargs.get("seconds", SECONDS[mark.name]) for mark in _needs_of(item)
        )
    items.sort(key=lambda item: -seconds[item.path])


def _needs_of(item: pytest.Item) -> list[pytest.Mark]:
    return [mark for mark in item.iter_markers() if mark.name in NEEDS]


def _shown_by(item: pytest.Item) -> set[str]:
    """Return what a test shows; what its module defines under a name of a rig is no rig."""
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    own, others = _names_in(getattr(item, "module", item))
    return {
        *(name for name in getattr(item, "fixturenames", ()) if name not in own),
        *(f"{name}={value}" for name, value in parameters.items() if isinstance(value, str)),
        *others,
        *(f"{part}/" for part in item.nodeid.partition("::")[0].split("/")),
    }


@functools.cache
def _names_in(module: object) -> tuple[set[str], set[str]]:
    """Return the names that a module defines, and its other names."""
    names = vars(module)
    own = {
        name
        for name, value in names.items()
        if getattr(value, "__module__", "") == getattr(module, "__name__", "")
    }
    return own, names.keys() - own


class QuickSession:
    """A session without Puppet and servers.

    It refuses programs twice: by name, as its directory of refused programs comes first on the
    `PATH` of tests and of their children; and by path, if a test starts one itself.
    """

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="localpuppet-quick-"))
        self._directory.chmod(0o755)
        self._started = self._directory / "started"
        self._started.touch()
        self._started.chmod(0o666)  # children of the user daemon write to it, too
        for name in PROGRAMS:
            program = self._directory / name
            program.write_text(REFUSED)
            program.chmod(0o755)
        os.environ["PATH"] = f"{self._directory}:{os.environ['PATH']}"
        sys.addaudithook(self._refuse)

    def _refuse(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event not in ("subprocess.Popen", "os.posix_spawn", "os.exec"):
            return
        words = [os.fsdecode(word) for word in arguments[1]]
        programs = {Path(word).name for word in words if word.startswith("/")}
        commands = {command for word, command in pairwise(words) if word == "localpuppet"}
        if programs & PROGRAMS or commands & SERVICES:
            with self._started.open("a") as file:
                file.write(f"{' '.join(words)}\n")
            raise PermissionError(f"{words[0]}: not in a quick session ({CURE})")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        """Leave out the tests with a mark."""
        quick = [item for item in items if not _needs_of(item)]
        config.hook.pytest_deselected(items=list(set(items) - set(quick)))
        items[:] = quick

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """Leave out directories with a mark before their modules are imported."""
        return f"{collection_path.name}/" in set().union(*NEEDS.values()) or None

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self) -> Generator[None]:
        """Fail a test that started a refused program, even if it expects that program to fail."""
        yield
        if started := self._started.read_text().strip():
            self._started.write_text("")
            pytest.fail(f"a quick test started {started} ({CURE})", pytrace=False)

    def pytest_unconfigure(self) -> None:
        """Remove the refused programs."""
        shutil.rmtree(self._directory)

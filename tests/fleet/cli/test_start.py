"""What commands, agents and runs load before Puppet: only what each needs.

Each further module makes every start slower: docs/contribute/benchmarks/runs.md.
"""

import sys
from pathlib import Path

import pytest

from tests.rigs.node import REPOSITORY, Done, Node, completed

LOADED = """
import sys
from localpuppet.__main__ import main
code = main(["--root", *sys.argv[1:]])
print(*sorted(sys.modules), sep="\\n", file=sys.stderr)
"""
# What a start once loaded, and what takes 0.5 to 110 ms to load.
HEAVY = {
    *("yaml", "jsonschema", "sh", "rich", "ssl", "asyncio", "subprocess", "tempfile", "logging"),
    *("hashlib", "dis", "locale"),
    *("secrets", "shutil", "click.shell_completion", "localpuppet.web.web_settings"),
    "localpuppet.node.puppet.command_line",
}
HEAVY_FOR_STATUS = {
    *("localpuppet.node.releases.git.access", "localpuppet.node.releases.git.git_names"),
    *("localpuppet.node.puppet.command_line", "localpuppet.base.machine.processes"),
    *("localpuppet.node.runs.options", "localpuppet.node.runs.verdict"),
}
HEAVY_FOR_ENC = {
    *("localpuppet.node.cli.lookup", "localpuppet.node.releases.module_metadata"),
    *("localpuppet.base.machine.ports", "localpuppet.base.machine.processes"),
    *("localpuppet.node.enc.site_command", "localpuppet.node.runs.run"),
}


def loaded(root: Path, verb: str) -> tuple[str, set[str]]:
    done = completed(sys.executable, "-c", LOADED, root, verb, cwd=REPOSITORY)
    return done.out, set(done.err.split())


def test_status_loads_only_the_additions_of_the_fleet(tmp_path: Path) -> None:
    out, modules = loaded(tmp_path, "status")
    of_fleet = sorted(name for name in modules if name.startswith("localpuppet.fleet."))
    assert of_fleet == ["localpuppet.fleet.cli", "localpuppet.fleet.cli.additions"]
    assert out.startswith("no run yet")


@pytest.mark.parametrize(
    ("verb", "heavy"), [("status", HEAVY | HEAVY_FOR_STATUS), ("enc", HEAVY | HEAVY_FOR_ENC)]
)
def test_a_start_loads_nothing_heavy(node: Node, verb: str, heavy: set[str]) -> None:
    node.settings()
    node.app("")
    node.run("enc")  # remembers the documents
    _, modules = loaded(node.root, verb)
    assert sorted(modules & heavy) == []


LATE = r"""
import localpuppet.__main__, inspect, threading
assert "cleandoc" not in vars(inspect)
ready, lines = threading.Barrier(8), []
def use(number):
    ready.wait()
    lines.append(inspect.cleandoc(f"{number}\n    next"))
threads = [threading.Thread(target=use, args=(number,)) for number in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(sorted(lines) == [f"{number}\nnext" for number in range(8)], hasattr(inspect, "nosuch"))
"""


def test_a_module_that_loads_late_is_whole_for_threads_that_use_it_at_once() -> None:
    assert completed(sys.executable, "-c", LATE, cwd=REPOSITORY).out == "True False\n"


READ = """
import sys
from localpuppet.fleet.app import FleetApp
from localpuppet.fleet.cli.agent import fill_settings_cache
from localpuppet.node.app import NodeApp
fill_settings_cache(FleetApp(NodeApp(sys.argv[1])))
fleet = FleetApp(NodeApp(sys.argv[1]))
print(fleet.settings.bus.engine, fleet.name)
print(sorted({"yaml", "jsonschema", "sh"} & set(sys.modules)))
"""


def read(root: Path) -> Done:
    return completed(sys.executable, "-c", READ, root, cwd=REPOSITORY, check=False)


@pytest.mark.server
def test_settings_are_read_without_loading_their_parsers(tmp_path: Path) -> None:
    (tmp_path / "localpuppet.yaml").write_text("node: web01.example.com\nbus: sqlite\n")
    done = read(tmp_path)
    assert done.out == "sqlite web01.example.com\n[]\n", done.err


CONNECT = """
import asyncio, sys
from localpuppet.base.errors import UnavailableError
from localpuppet.fleet.app import FleetApp
from localpuppet.node.app import NodeApp
fleet = FleetApp(NodeApp(sys.argv[1]))
try:
    asyncio.run(fleet.connect())
except UnavailableError:
    print("nats.aio.client" in sys.modules)
fleet.identity.own_key.ensure()
fleet.signer
print(sorted(set(sys.argv[2:]) & set(sys.modules)))
"""


@pytest.mark.server
def test_an_agent_on_nats_loads_no_module_for_versions_or_other_key_forms(tmp_path: Path) -> None:
    """They took 3 MiB of an idle agent."""
    heavy = ["importlib.metadata", "zipfile", "tempfile", "shutil", "difflib"]
    heavy.append("cryptography.hazmat.primitives.serialization")
    servers = "buses: {nats: {servers: ['nats://localhost:1']}, timeout: 1}"
    (tmp_path / "localpuppet.yaml").write_text(f"node: a.example.com\nbus: nats\n{servers}\n")
    assert read(tmp_path).code == 0  # remembers the settings
    command = (sys.executable, "-c", CONNECT, str(tmp_path), *heavy)
    completed(*command, cwd=REPOSITORY)  # makes the key
    assert completed(*command, cwd=REPOSITORY).out == "True\n[]\n"


def test_supervising_a_run_and_leaving_its_entry_loads_no_module_of_the_bus() -> None:
    """Importing asyncio and ssl takes 30 ms, for which each run would have to wait."""
    modules = "localpuppet.node.app, localpuppet.fleet.neighbours"
    modules += ", localpuppet.fleet.publishing, localpuppet.fleet.inventory.outbox"
    code = f"import sys, {modules}; print(*sys.modules)"
    names = completed(sys.executable, "-c", code, cwd=REPOSITORY).out.split()
    assert "localpuppet.fleet.publishing" in names
    assert not {"asyncio", "ssl", "sqlite3"} & set(names)


def test_an_error_in_the_settings_is_reported_once(tmp_path: Path) -> None:
    (tmp_path / "localpuppet.yaml").write_text("node: web01.example.com\nbus: carrier-pigeon\n")
    done = read(tmp_path)
    assert (done.out, done.err.count("InvalidInputError")) == ("", 1)

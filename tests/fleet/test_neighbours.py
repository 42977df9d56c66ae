"""A reinstalled node learns from its own entry on the bus which releases it had."""

import json
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from localpuppet.base.machine.flock import Flock
from localpuppet.fleet.app import FleetApp
from localpuppet.fleet.inventory.outbox import Outbox
from localpuppet.fleet.neighbours import ReinstalledNode
from localpuppet.node.app import NodeApp
from tests.rigs.applied import SavedSites
from tests.rigs.forge import Repo, klass
from tests.rigs.node import Node, make_node
from tests.rigs.signing import TAGGED_AT, payload, put_tag

# What outlives the machine: the identity of the node, and the bus. What is known of Puppet would be
# the same again.
KEPT = ("keys", "trusted", "cache")


@pytest.fixture(scope="module")
def sites(tmp_path_factory: pytest.TempPathFactory, puppet_probe: str) -> Iterator[SavedSites]:
    """A node that has applied r2, tagged an hour after r1, and has published that."""
    directory = tmp_path_factory.mktemp("sites")
    node = make_node(directory / "site" / "node", puppet_probe)
    sites = SavedSites(directory, node)
    web = sites.forge.repo("web")
    for number in (1, 2):
        tag = f"r{number}"
        files = {"manifest.yaml": "modulepath: []\n", "web/manifests/init.pp": klass("web", tag)}
        web.commit(files)
        put_tag(web, tag, payload(web, tag, tag, at=TAGGED_AT + 3600 * number))
    node.settings(
        node="web01.example.com",
        bus="sqlite",
        buses={"sqlite": {"path": str(directory / "site" / "bus.sqlite")}},
        allow_file_urls=True,
        sources={"web": {"git": web.url}},
    )
    node.write("input.yaml", "app: web/tags/r2\nclasses: [web]\n")
    assert "this node published" not in node.run("apply", code=0).err
    # The process that publishes also writes the history, after the entry.
    node.wait_until(lambda: not node.apart())
    assert Outbox(node.state).is_published()
    sites.save("applied")
    yield sites
    node.end()


@pytest.fixture
def applied(sites: SavedSites) -> Iterator[Node]:
    node = sites.restore("applied")
    yield node
    node.end()


@pytest.fixture
def web(applied: Node) -> Repo:
    """Releases r1 and r2."""
    return Repo(applied.root.parent / "forge" / "web")


def made_anew(node: Node, *, kept: tuple[str, ...] = KEPT) -> None:
    """Remove the state of the node, and give it an older release."""
    for path in node.state.iterdir():
        if path.name not in kept:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    for link in (node.root / "modules/web/tags").iterdir():
        link.unlink()
    node.write("input.yaml", "app: web/tags/r1\nclasses: [web]\n")


def test_a_reinstalled_node_refuses_an_older_release_without_allow_older(applied: Node) -> None:
    made_anew(applied)
    refused = applied.run("apply", code=2)
    assert "this node published web/tags/r2 as its last release" in refused.err
    assert "web/tags/r1: is older, by tag timestamp, than web/tags/r2" in refused.err
    applied.run("check", code=2)
    applied.run("apply", "--allow-older", code=0)
    assert applied.run("apply").code == 0, "its own order counts from now on"


def test_an_entry_of_another_key_does_not_count_and_stops_no_run(applied: Node) -> None:
    made_anew(applied, kept=("cache",))
    done = applied.run("apply", code=0)
    assert "the release that this node published before is rejected" in done.err


def test_with_an_agent_the_check_uses_its_view_of_the_bus(applied: Node) -> None:
    made_anew(applied)
    applied.run("stage", code=0)
    # As an agent would: without an agent, a query brings the view up to date.
    applied.run("nodes", "--role", "web", code=0)
    with agent_of(applied):
        checked = applied.run("check")
    assert checked.code == 2
    assert "this node published web/tags/r2 as its last release" in checked.err


@contextmanager
def agent_of(node: Node) -> Iterator[None]:
    """Be there as the node's agent is, and read nothing."""
    (node.state / "agent").mkdir(exist_ok=True)
    held = Flock.take(node.state / "agent/lock")
    assert held is not None
    try:
        yield
    finally:
        held.release()


def test_an_agent_that_has_just_started_is_waited_for(applied: Node) -> None:
    made_anew(applied)
    notes: list[str] = []
    wiring = NodeApp(str(applied.root))
    with agent_of(applied):
        assert ReinstalledNode(FleetApp(wiring), reading=0.1).applied("web", notes.append) is None
    waits, problem = notes
    assert waits == "the agent has not read the bus yet: the run waits for it for up to 0.1 s"
    assert problem.endswith("is rejected: inventory: the agent has not read the bus yet")

    notes.clear()
    with ExitStack() as agent:
        agent.enter_context(agent_of(applied))

        def note(text: str) -> None:
            notes.append(text)
            if text.startswith("the agent has not read the bus yet"):
                agent.close()
                applied.run("nodes", "--role", "web", code=0)
                agent.enter_context(agent_of(applied))

        said = ReinstalledNode(FleetApp(wiring)).applied("web", note)
    assert said is not None
    assert str(said.release) == "web/tags/r2"
    assert len(notes) == 2
    assert notes[1].endswith("published web/tags/r2 as its last release")


def test_an_unreachable_bus_does_not_stop_the_first_run(node: Node, web: Repo) -> None:
    node.settings(
        node="web01.example.com",
        bus="nats",
        buses={"nats": {"servers": ["nats://127.0.0.1:1"]}, "timeout": 1},
        allow_file_urls=True,
        sources={"web": {"git": web.url}},
    )
    node.write("input.yaml", "app: web/tags/r1\nclasses: [web]\n")
    done = node.run("apply", code=0)
    assert "the release that this node published before is rejected" in done.err


def test_a_run_of_the_agent_refuses_the_older_release_too(applied: Node) -> None:
    made_anew(applied)
    raw = json.loads((applied.root / "localpuppet.yaml").read_text())
    more = {**raw, "agent": {"run_interval": "2s"}, "socket": str(applied.root / "a.sock")}
    applied.write("localpuppet.yaml", json.dumps(more))
    applied.start("agent")
    older = "web/tags/r1: is older, by tag timestamp, than web/tags/r2"
    applied.wait_until(lambda: older in applied.run("history").out)


@pytest.fixture
def newcomer(applied: Node, tmp_path: Path, puppet_probe: str) -> Iterator[Node]:
    """Another node on that bus, which trusts the first one and has staged nothing."""
    made = make_node(tmp_path / "lb01", puppet_probe)
    shutil.copy(applied.root / "localpuppet.yaml", made.root)
    file = made.root / "localpuppet.yaml"
    file.write_text(file.read_text().replace("web01.example.com", "lb01.example.com"))
    made.write("web01.pem", applied.run("keys", "show").out)
    made.run("keys", "init", code=0)
    made.run("keys", "trust", "web01.example.com", str(made.root / "web01.pem"), code=0)
    yield made
    made.end()


def move_tag(web: Repo, tag: str) -> None:
    web.commit({"web/manifests/init.pp": klass("web", "moved")})
    web.git("tag", "-d", tag)
    put_tag(web, tag, payload(web, tag, tag, at=TAGGED_AT + 7200))


def test_a_tag_that_is_another_commit_on_other_nodes_is_refused(newcomer: Node, web: Repo) -> None:
    before = web.git("rev-parse", "r2^{commit}")
    move_tag(web, "r2")
    after = web.git("rev-parse", "r2^{commit}")
    refused = newcomer.run("stage", "web/tags/r2", code=3)
    assert f"r2 is {after[:12]} here, but {before[:12]} on web01.example.com" in refused.err
    assert not (newcomer.root / "modules/web").exists()
    assert newcomer.run("release", "verify", "web/tags/r2").code == 2, "it is not staged"
    assert newcomer.run("stage", "web/tags/r2").code == 3, "the refusal is not forgotten"
    newcomer.run("stage", "--accept-moved", "web/tags/r2", code=0)
    newcomer.run("stage", "web/tags/r2", code=0)


def test_a_tag_that_is_the_same_on_other_nodes_is_taken(newcomer: Node) -> None:
    for tag in ("r2", "r1"):
        staged = newcomer.run("stage", f"web/tags/{tag}")
        assert (staged.code, staged.err) == (0, "")


def test_a_damaged_bus_does_not_stop_staging(newcomer: Node, applied: Node) -> None:
    for file in applied.root.parent.glob("bus.sqlite*"):
        file.write_bytes(b"rubbish" * 1000)
    staged = newcomer.run("stage", "web/tags/r2", code=0)
    assert "warning: web/tags/r2 was not compared with other nodes: " in staged.err

"""Instance data in real runs: a metadata service at its real address, in a separate network.

Needs root, for the network namespace. The service records each request and its client.
"""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from localpuppet.fleet.inventory.outbox import Outbox
from tests.node.enc.instance import metadata
from tests.node.enc.instance.cloud_init import CloudInit
from tests.node.enc.instance.test_services import DHCLIENT, leased
from tests.rigs.node import REPOSITORY, Done, Node, shell
from tests.rigs.waiting import PATIENCE

LINK_LOCAL, OWN, ROUTER = "169.254.169.254", "10.1.1.57", "10.1.1.1"
CANARY = "canary-7e1f"
USER_DATA = f"#!/bin/sh\n#role=web\nGREETING={CANARY}\nkernel=evil\nec2_metadata=evil\n"
MANIFEST = "modules/app/trunk/app/manifests/init.pp"
SHOWS = """
  $top = getvar('role')  # Puppet 8 takes a name that is not there for an error
  notify { "role ${facts['role']}, ${facts['kernel']}, ${facts['ec2_metadata']}, ${top}": }
  notify { "id ${facts['instance_id']}": }
"""
INPUT = "#localpuppet-input\n" + json.dumps({"app": "app/trunk", "classes": ["app"]})


@dataclass
class Cloud:
    """A network with nothing but this machine and a metadata service in it."""

    directory: Path  # for what the service needs
    name: str
    running: list[subprocess.Popen[bytes]] = field(default_factory=list)
    earlier: int = 0  # the number of requests that do not count

    @property
    def inside(self) -> list[str]:
        """The command prefix that starts a program in it."""
        return ["ip", "netns", "exec", self.name]

    @property
    def requests(self) -> list[str]:
        """The requests to the service."""
        return self._log.read_text().splitlines()[1 + self.earlier :]

    @property
    def _log(self) -> Path:
        return self.directory / "requests"

    def serve(self, node: Node, address: str, pages: dict[str, bytes]) -> None:
        """Start a service, and wait until it listens."""
        self._log.write_text("")
        said = self.directory / "pages.json"
        said.write_text(json.dumps({path: body.decode() for path, body in pages.items()}))
        words = [sys.executable, "-m", "tests.node.enc.instance.metadata", address, "80"]
        self.running.append(
            subprocess.Popen([*self.inside, *words, str(said), str(self._log)], cwd=REPOSITORY)
        )
        node.wait_until(lambda: "listening" in self._log.read_text())

    def stop(self) -> None:
        """Stop the services."""
        while self.running:
            service = self.running.pop()
            service.kill()
            service.wait()


@contextmanager
def network(directory: Path) -> Iterator[Cloud]:
    made = Cloud(directory, f"lpcloud{os.getpid()}")

    def ip(*words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True, timeout=PATIENCE)

    ip("netns", "add", made.name)
    try:
        ip("-n", made.name, "link", "set", "lo", "up")
        for address in (f"{LINK_LOCAL}/32", f"{OWN}/24", f"{ROUTER}/24"):
            ip("-n", made.name, "address", "add", address, "dev", "lo")
        yield made
    finally:
        made.stop()
        ip("netns", "del", made.name)


@pytest.fixture
def cloud(node: Node, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cloud]:
    """A network; the node is in it."""
    with network(tmp_path_factory.mktemp("cloud")) as made:
        node.inside = made.inside
        node.app(SHOWS)
        yield made


def served(node: Node, cloud: Cloud, *words: str) -> Done:
    """Run a command that asks the service; a busy machine may answer later than a node waits."""
    for _ in range(10):
        cloud.earlier += len(cloud.requests)
        done = node.run(*words)
        if "timed out after" not in done.err:
            break
    return done


def readable_by_others(root: Path, text: str) -> list[str]:
    """Return the files below a root that hold a text and that others than root could read."""
    found = []
    for path in root.rglob("*"):
        if path.is_symlink() or not path.is_file() or text.encode() not in path.read_bytes():
            continue
        way = [path, *path.relative_to(root).parents]
        modes = [(root / step).stat().st_mode for step in way]
        if all(mode & (stat.S_IROTH if stat.S_ISREG(mode) else stat.S_IXOTH) for mode in modes):
            found.append(str(path.relative_to(root)))
    return found


def test_a_service_gives_facts_once_a_boot_and_no_fact_of_facters(node: Node, cloud: Cloud) -> None:
    node.root.chmod(0o755)
    cloud.serve(node, LINK_LOCAL, metadata.ec2("i-0a1b", USER_DATA.encode()))
    node.settings(instance_data={"service": "ec2", "cloud_init": False})
    done = served(node, cloud, "apply")
    assert done.code == 0, done.err + done.out
    assert "role web, Linux, , web" in done.out
    assert "id i-0a1b" in done.out
    asked = [metadata.EC2, "/latest/meta-data/instance-id", "/latest/user-data"]
    assert [request.split()[1] for request in cloud.requests] == asked

    # Other nodes get the role, and nothing else that came from the cloud.
    entry = Outbox(node.state).entry()
    assert entry is not None
    assert (entry.roles, entry.facts["role"], entry.facts["kernel"]) == (("web",), "web", "Linux")
    assert not {"greeting", "instance_id"} & set(entry.facts)

    # The boot continues without the service; the line can be pasted, and names no value.
    cloud.stop()
    done = node.run("apply", "--noop", code=0)
    assert "role web, Linux, , web" in done.out
    line = done.out.splitlines()[0].removeprefix("# ")
    assert line.startswith("LOCALPUPPET_INSTANCE_FACTS=")
    pasted = shell(line)
    assert "role web, Linux, , web" in pasted

    request = json.loads((node.state / "runs" / node.runs()[-1] / "request.json").read_text())
    assert request["instance_facts"] == ["greeting", "instance_id", "role"]
    why = node.run("why").out
    assert "greeting, instance_id, role" in why
    said = done.out + done.err + pasted + why + json.dumps(request)
    assert CANARY not in said + node.run("status", "--json").out
    assert readable_by_others(node.root, CANARY) == []
    assert readable_by_others(node.root, "facts['kernel']") == [MANIFEST]  # it does find


def test_an_unreachable_service_stops_the_run_before_it_begins(node: Node, cloud: Cloud) -> None:
    """ "No role" and "could not ask" are different answers."""
    node.settings(instance_data={"service": "ec2", "cloud_init": False})
    done = node.run("apply", code=69)
    assert "http://169.254.169.254/latest/api/token" in done.err
    assert node.runs() == []


def test_cloudstack_is_found_by_the_lease(node: Node, cloud: Cloud) -> None:
    cloud.serve(node, ROUTER, metadata.cloudstack("i-2-7-VM", b"role=haproxy\n"))
    node.write("leases/dhclient.eth0.leases", leased(DHCLIENT, ROUTER))
    body = {"service": "cloudstack", "cloud_init": False, "leases": ["leases"]}
    node.settings(instance_data=body)
    done = served(node, cloud, "apply")
    assert done.code == 0, done.err
    assert "role haproxy, Linux, , haproxy" in done.out
    assert "id i-2-7-VM" in done.out


def test_user_data_can_be_the_input(node: Node, cloud: Cloud) -> None:
    cloud.serve(node, LINK_LOCAL, metadata.ec2("i-0a1b", INPUT.encode()))
    node.settings(instance_data={"service": "ec2", "cloud_init": False})
    (node.root / "input.yaml").unlink()
    done = served(node, cloud, "apply", "userdata:")
    assert done.code == 0, done.err
    assert "id i-0a1b" in done.out
    assert "user data" in node.run("why").out


def test_an_input_of_user_data_is_as_strict_as_any(node: Node, tmp_path: Path) -> None:
    """Its source earns it no trust, even if that is cloud-init's own files."""
    machine = CloudInit(tmp_path / "cloud-init")
    machine.root.mkdir()
    machine.boot(b"#localpuppet-input\napp: foo/trunk\napp: foo/trunk\n")
    node.settings(instance_data={"cloud_init": machine.places})
    done = node.run("apply", "userdata:")
    assert (done.code, "error: user data: " in done.err, "duplicate" in done.err) == (2, True, True)


def test_runs_lookups_and_catalogs_have_the_facts_of_cloud_init(node: Node, tmp_path: Path) -> None:
    machine = CloudInit(tmp_path / "cloud-init")
    machine.root.mkdir()
    machine.boot(USER_DATA.encode())
    node.app(SHOWS)
    node.settings(instance_data={"cloud_init": machine.places})
    done = node.run("apply", "--noop", code=0)
    assert "role web, Linux, , web" in done.out
    node.write(
        "modules/app/trunk/hiera.yaml",
        "version: 5\nhierarchy: [{name: roles, path: '%{facts.role}.yaml'}]\n",
    )
    node.write("modules/app/trunk/data/web.yaml", "port: 8080\n")
    found = node.run("lookup", "port")
    assert "8080" in found.out, found.err
    assert sorted(path.name for path in node.state.glob("diff-*")) == []

    # Another boot, without user data: the earlier values are gone.
    machine.boot(b"", instance_id="i-second")
    done = node.run("apply", "--noop")
    assert "role , Linux, , " in done.out
    assert "id i-second" in done.out
    assert CANARY not in (node.state / "instance" / "facts.json").read_text()

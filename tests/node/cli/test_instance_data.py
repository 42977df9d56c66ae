"""`localpuppet instance-data`: what comes from the cloud is shown by name, never by value."""

from pathlib import Path

import pytest

from tests.node.enc.instance.cloud_init import CloudInit
from tests.rigs.node import Node

SECRET = "hunter2"


@pytest.fixture
def machine(node: Node, tmp_path: Path) -> CloudInit:
    """A machine that cloud-init has set up."""
    made = CloudInit(tmp_path / "cloud-init")
    made.root.mkdir()
    node.settings(instance_data={"cloud_init": made.places})
    return made


def test_names_are_shown_and_values_are_not(node: Node, machine: CloudInit) -> None:
    machine.boot(f"role={SECRET}\nkernel={SECRET}\nlong={SECRET * 1000}\n".encode())
    done = node.run("instance-data")
    assert done.code == 0, done.err
    assert "Facts      instance_id, role" in done.out
    assert "kernel    Facter or Puppet has facts of that name" in done.out
    assert max(map(len, done.out.splitlines())) <= 60
    raw = node.run("instance-data", "--json")
    assert SECRET not in done.out + raw.out
    assert raw.json == {
        "schema": 1,
        "source": "cloud-init",
        "instance_id": "i-0a1b2c3d",
        "user_data_bytes": 7034,
        "is_input": False,
        "facts": ["instance_id", "role"],
        "left_out": {
            "kernel": "Facter or Puppet has facts of that name",
            "long": "the value has more than 4096 bytes",
        },
    }


def test_an_input_is_named_as_one(node: Node, machine: CloudInit) -> None:
    machine.boot(b"#localpuppet-input\napp: foo/trunk\nclasses: [foo]\n")
    assert "49 bytes, an input" in node.run("instance-data").out
    done = node.run("check", "userdata:")
    assert done.code == 0, done.err
    assert "foo/trunk" in done.out


def test_a_node_that_is_not_in_a_cloud_says_so(node: Node) -> None:
    done = node.run("instance-data")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("none: ")
    assert node.run("instance-data", "--json").json["source"] is None


@pytest.mark.parametrize(
    "body",
    [
        {"service": "gce"},
        {"service": "http://192.0.2.1/"},
        {"service": "ec2", "address": "192.0.2.1"},
        {"cloud_init": True},
        {"cloud_init": {"run_dir": ""}},
        {"leases": []},
        "ec2",
    ],
)
def test_other_settings_are_refused(node: Node, body: object) -> None:
    """Where a service is cannot be set: it would be asked there."""
    node.settings(instance_data=body)
    done = node.run("instance-data")
    assert done.code == 2
    assert "instance_data" in done.err

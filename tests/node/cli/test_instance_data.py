"""`localpuppet instance-data` shows the names of facts from the cloud, never their values."""

from pathlib import Path

import pytest

from tests.node.enc.instance.cloud_init import CloudInit
from tests.rigs.node import Node

SECRET = "hunter2"


@pytest.fixture
def machine(node: Node, tmp_path: Path) -> CloudInit:
    made = CloudInit(tmp_path / "cloud-init")
    made.root.mkdir()
    node.settings(instance_data={"cloud_init": made.places})
    return made


def test_the_command_shows_names_and_no_values(node: Node, machine: CloudInit) -> None:
    machine.boot(f"role={SECRET}\nkernel={SECRET}\nlong={SECRET * 1000}\n".encode())
    done = node.run("instance-data", code=0)
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


def test_the_command_reports_user_data_that_is_an_input(node: Node, machine: CloudInit) -> None:
    machine.boot(b"#localpuppet-input\napp: foo/trunk\nclasses: [foo]\n")
    assert "49 bytes, an input" in node.run("instance-data").out
    done = node.run("check", "userdata:", code=0)
    assert "foo/trunk" in done.out


def test_the_command_reports_that_a_node_has_no_instance_data(node: Node) -> None:
    done = node.run("instance-data")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith("none: ")
    assert node.run("instance-data", "--json").json["source"] is None


@pytest.mark.parametrize(
    "body",
    [
        *({"service": "gce"}, {"service": "http://192.0.2.1/"}),
        *({"service": "ec2", "address": "192.0.2.1"}, {"cloud_init": True}),
        *({"cloud_init": {"run_dir": ""}}, {"leases": []}, "ec2"),
    ],
)
def test_unknown_services_and_addresses_are_refused(node: Node, body: object) -> None:
    """The address of a service is not a setting, because localpuppet would query that address."""
    node.settings(instance_data=body)
    done = node.run("instance-data", code=2)
    assert "instance_data" in done.err

"""Files that Debian's real cloud-init wrote, with its source NoCloud."""

from pathlib import Path

import pytest

from localpuppet.node.enc.instance.instance_data import CloudInitFiles
from localpuppet.node.enc.instance.instance_facts import facts_of, read_cloud_init
from tests.node.enc.instance.cloud_init import CloudInit


@pytest.fixture
def machine(tmp_path: Path) -> CloudInit:
    return CloudInit(tmp_path)


def files_of(machine: CloudInit) -> CloudInitFiles:
    return CloudInitFiles(**{name: Path(path) for name, path in machine.places.items()})


def test_instance_id_and_user_data_are_read_from_cloud_init(machine: CloudInit) -> None:
    machine.boot(b"#!/bin/sh\nrole=web\n")
    found = read_cloud_init(files_of(machine))
    assert found is not None
    assert (found.source, found.user_data) == ("cloud-init", b"#!/bin/sh\nrole=web\n")
    assert facts_of(found).facts == {"instance_id": "i-0a1b2c3d", "role": "web"}


def test_the_user_data_belongs_to_the_last_booted_instance(machine: CloudInit) -> None:
    machine.boot(b"role=web\n")
    machine.boot(b"role=db\n", instance_id="i-second")
    found = read_cloud_init(files_of(machine))
    assert found is not None
    assert (found.instance_id, found.user_data) == ("i-second", b"role=db\n")


@pytest.mark.parametrize("user_data", [b"", b"\x1f\x8b\x08\x00binary\xff"])
def test_empty_or_binary_user_data_arrives_unchanged(machine: CloudInit, user_data: bytes) -> None:
    machine.boot(user_data)
    found = read_cloud_init(files_of(machine))
    assert found is not None
    assert found.user_data == user_data
    assert set(facts_of(found).facts) == {"instance_id"}

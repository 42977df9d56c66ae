"""Which service a node asks for instance data, how often, and which answers it stores."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.node.enc.instance_data import CloudInitFiles, InstanceData, Service
from localpuppet.node.enc.instance_facts import (
    InstanceSource,
    facts_of,
    read_cloud_init,
    write_facts,
)
from tests.node.enc.instance.cloud_init import CloudInit

USER_DATA = b"role=web\npassword=hunter2\n"


class Site:
    """A machine and a metadata service.

    Attributes:
        boot: The id of the boot.
        away: Whether the service does not answer.
        asked: The services that were asked.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.boot = "boot-1"
        self.away = False
        self.user_data = USER_DATA
        self.asked: list[Service] = []

    @property
    def memory(self) -> Path:
        return self.root / "instance" / "answer.json"

    def source(
        self, service: Service | None = Service.EC2, *, files: CloudInitFiles | None = None
    ) -> InstanceSource:
        """Return the source as in a new process."""
        return InstanceSource(
            files=files,
            service=service,
            ask=self._ask,
            memory=self.memory,
            boot_id=lambda: self.boot,
        )

    def _ask(self, service: Service) -> InstanceData:
        self.asked.append(service)
        if self.away:
            raise UnavailableError("does not answer")
        return InstanceData(source=service, instance_id="i-0a1b", user_data=self.user_data)

    def knows(self, user_data: bytes | None = b"", **v1: Any) -> CloudInitFiles:
        files = CloudInitFiles(run_dir=self.root / "run", cloud_dir=self.root / "lib")
        values = {"instance_id": "i-cloud", "cloud_id": "aws", **v1}
        files.run_dir.mkdir(exist_ok=True)
        (files.run_dir / "instance-data.json").write_text(json.dumps({"v1": values}))
        if user_data is not None:
            own = files.cloud_dir / "instances" / "i-cloud"
            own.mkdir(parents=True, exist_ok=True)
            (own / "user-data.txt").write_bytes(user_data)
        return files


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_without_a_configured_service_none_is_asked(site: Site) -> None:
    source = site.source(None)
    assert source.data is None
    assert source.facts() == {}
    assert site.asked == []
    assert not site.memory.parent.exists()


def test_a_service_is_asked_once_per_boot_and_another_one_again(site: Site) -> None:
    for _ in range(3):
        assert site.source().facts()["role"] == "web"
    assert site.asked == ["ec2"]
    site.boot = "boot-2"
    assert site.source().facts()["role"] == "web"
    assert site.asked == ["ec2", "ec2"]
    assert site.source(Service.OPENSTACK).facts()["role"] == "web"
    assert site.asked == ["ec2", "ec2", "openstack"]


def test_a_failed_question_is_not_stored(site: Site) -> None:
    site.away = True
    for _ in range(2):
        with pytest.raises(UnavailableError):
            site.source().facts()
    assert site.asked == ["ec2", "ec2"]
    site.away = False
    assert site.source().facts()["role"] == "web"


def test_while_the_service_is_unavailable_only_an_answer_of_this_boot_is_used(site: Site) -> None:
    """The image may have booted as another machine since."""
    _ = site.source().data
    site.away = True
    assert site.source().facts()["role"] == "web"
    site.boot = "boot-2"
    with pytest.raises(UnavailableError):
        site.source().facts()


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"[]",
        b"{",
        b'{"boot_id": "boot-1"}',
        b'{"boot_id": "boot-1", "data": {"source": "ec2", "instance_id": "../x", "user_data": ""}}',
        b'{"boot_id": "boot-1", "data": {"source": "ec2", "instance_id": "i", "user_data": "?"}}',
    ],
)
def test_a_damaged_stored_answer_is_asked_for_again(site: Site, damage: bytes) -> None:
    site.memory.parent.mkdir()
    site.memory.write_bytes(damage)
    assert site.source().facts()["role"] == "web"
    assert site.asked == ["ec2"]


def test_only_root_can_read_the_stored_answer_until_it_is_forgotten(site: Site) -> None:
    _ = site.source().data
    assert stat.S_IMODE(site.memory.stat().st_mode) == 0o600
    assert stat.S_IMODE(site.memory.parent.stat().st_mode) == 0o700
    assert b"hunter2" not in site.memory.read_bytes()  # base64, so that grep does not find it
    site.user_data = b"role=db\n"
    site.source().forget()
    assert site.source().facts()["role"] == "db"


def test_cloud_init_takes_precedence_and_is_read_each_time(site: Site) -> None:
    files = site.knows(b"role=db\n")
    assert site.source(files=files).facts() == {"instance_id": "i-cloud", "role": "db"}
    site.knows(b"role=web\n")
    assert site.source(files=files).facts()["role"] == "web"
    assert site.asked == []
    assert not site.memory.exists()


@pytest.mark.parametrize("left", ["nothing", "no cloud"])
def test_if_cloud_init_found_no_cloud_the_service_is_asked(site: Site, left: str) -> None:
    files = site.knows(cloud_id="none")
    if left == "nothing":
        (files.run_dir / "instance-data.json").unlink()
    assert site.source(files=files).facts()["role"] == "web"
    assert site.asked == ["ec2"]


def test_missing_user_data_of_cloud_init_is_unavailable_and_not_empty(site: Site) -> None:
    files = site.knows(user_data=None)
    with pytest.raises(UnavailableError, match="not there yet"):
        site.source(files=files).facts()
    assert site.asked == []


@pytest.mark.parametrize("instance_id", ["../../etc", "/etc", "", "a b", "x" * 256, 7, None, "é"])
def test_an_invalid_instance_id_is_refused(site: Site, instance_id: object) -> None:
    files = site.knows(instance_id=instance_id)
    with pytest.raises(InvalidInputError) as refused:
        site.source(files=files).facts()
    assert "instance-data.json" in refused.value.where
    assert "cloud_init: false" in refused.value.hint


@pytest.mark.parametrize(
    "damage", [b"", b"{", b"[]", b"{}", b'{"v1": 7}', b"\xff", b"x" * 5_000_000]
)
def test_damaged_files_are_refused(site: Site, damage: bytes) -> None:
    files = site.knows()
    (files.run_dir / "instance-data.json").write_bytes(damage)
    with pytest.raises(InvalidInputError, match=r"instance-data\.json"):
        site.source(files=files).facts()


def test_user_data_that_is_an_input(site: Site) -> None:
    site.user_data = b"#localpuppet-input\r\napp: foo/trunk\n"
    assert site.source().input() == site.user_data
    assert site.source().facts() == {"instance_id": "i-0a1b"}


@pytest.mark.parametrize(
    "user_data", [b"", USER_DATA, b"#localpuppet-inputs\n", b" #localpuppet-input"]
)
def test_other_user_data_is_not_an_input(site: Site, user_data: bytes) -> None:
    site.user_data = user_data
    with pytest.raises(InvalidInputError, match="is not an input") as refused:
        site.source().input()
    assert "hunter2" not in str(refused.value)
    with pytest.raises(InvalidInputError, match="no service is set"):
        site.source(None).input()


def test_the_file_of_facts_is_written_for_puppet_and_removed_without_facts(tmp_path: Path) -> None:
    path = write_facts({"role": "web"}, tmp_path)
    assert path is not None
    assert json.loads(path.read_text()) == {"role": "web"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert write_facts({}, tmp_path) is None
    assert not path.exists()


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

"""Preparing a run of a release that a signed request assigned."""

from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import ReleasePath
from localpuppet.base.formats.times import parse_time
from localpuppet.node.enc.assignment import Assignment
from tests.node.runs.test_preparing import OPTIONS, RUN, Site, document_of


@pytest.fixture
def site(tmp_path: Path) -> Site:
    root = tmp_path / "root"
    root.mkdir()
    return Site(root)


def assigned(release: str, serial: int, **more: Any) -> Assignment:
    return Assignment(
        release=ReleasePath(release),
        serial=serial,
        by="choria=alice",
        at="2026-11-22T11:00:00.000000Z",
        **more,
    )


def test_an_assigned_release_is_prepared_and_the_record_names_its_author(site: Site) -> None:
    site.write("app/assigned")
    site.assigned = assigned("app/tags/r2", 7, classes={"app": {"port": 81}}, layers=("ams",))
    prepared = site.preparation().prepare(OPTIONS, set_release=site.named.append)
    assert site.named == [prepared.release.name] == ["app/tags/r2"]
    document = document_of(prepared.document)
    assert document["classes"]["app"] == {"port": 81}
    assert document["parameters"] == {"dc": "ams"}
    request = prepared.request(RUN, parse_time("2026-11-22T12:00:00Z"), command=(), document={})
    assert request.to_dict()["assignment"] == site.assigned.to_public()


def test_a_new_assignment_ends_a_rollback_as_a_new_input_does(site: Site) -> None:
    sha256 = site.write("app/assigned")
    site.assigned = assigned("app/tags/r2", 7)
    site.rolled_back(sha256, serial=7)
    prepared = site.preparation().prepare(OPTIONS)
    assert (prepared.release.name, prepared.loaded.assignment) == ("app/tags/r1", None)
    in_force = site.ledger.in_force(site.root / "input.yaml", serial=7)
    assert in_force is not None
    assert site.ledger.in_force(site.root / "input.yaml", serial=8) is None
    site.assigned = assigned("app/tags/r2", 8)
    prepared = site.preparation().prepare(OPTIONS)
    assert (prepared.release.name, prepared.ends_rollback) == ("app/tags/r2", True)


def test_an_assignment_of_an_older_release_needs_allow_older(site: Site) -> None:
    site.write("app/assigned")
    for app in ("app/tags/r1", "app/tags/r2"):
        site.ledger.note(ReleasePath(app))
    site.assigned = assigned("app/tags/r1", 7)
    with pytest.raises(InvalidInputError, match="older than app/tags/r2"):
        site.preparation().prepare(OPTIONS)
    site.assigned = assigned("app/tags/r1", 8, allow_older=True)
    assert site.preparation().prepare(OPTIONS).release.name == "app/tags/r1"

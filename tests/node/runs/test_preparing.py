"""Preparing a run: each step once, and rollbacks until the input changes."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import BusyError, InvalidInputError, UnavailableError
from localpuppet.base.formats.documents import Documents
from localpuppet.base.formats.names import ReleasePath, RunId
from localpuppet.base.formats.times import parse_time
from localpuppet.base.formats.values import Json
from localpuppet.node.enc.assignment import Assignment
from localpuppet.node.enc.document import ReleaseEnc
from localpuppet.node.enc.input import InputReader
from localpuppet.node.releases.release import Release
from localpuppet.node.releases.release_records import AppliedElsewhere, Ledger, TagMemory
from localpuppet.node.releases.store import Store
from localpuppet.node.runs.options import RunOptions
from localpuppet.node.runs.preparing import ReleaseProvider, RunPreparation
from tests.node import make
from tests.rigs.supervised import NoFetch

RUN = RunId(make.RUN)
OPTIONS = RunOptions(noop=False, tags=None, extra=(), timeout=60.0, user="alice", cause="manual")
THEN = {"classes": {"app": {"port": 79}}, "parameters": {}, "environment": "production"}


class CountedEnc(ReleaseEnc):
    """An `enc.yaml` that counts how often it is used to compute a document."""

    computed = 0

    def select(self, names: Any) -> Any:
        type(self).computed += 1
        return super().select(names)


class Site:
    """A node with an input, and releases that need no staging.

    Attributes:
        resolved: Every release that was resolved.
        notes: The notes for a person.
        user_data: The input in the cloud's user data.
        instance_facts: The facts of the instance data.
        elsewhere: The answers of the bus, one for each question.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.ledger = Ledger(root / "var")
        self.resolved: list[ReleasePath] = []
        self.notes: list[str] = []
        self.named: list[str] = []
        self.fetch: Any = NoFetch()
        self.user_data = b""
        self.instance_facts: dict[str, str] = {}
        self.assigned: Assignment | None = None
        self.elsewhere: list[AppliedElsewhere | None] = []
        CountedEnc.computed = 0
        self.write("app/tags/r1")

    @property
    def computed(self) -> int:
        return CountedEnc.computed

    def write(self, app: str, **more: Json) -> str:
        data = json.dumps({"app": app, "classes": {"app": {"port": 80}}, **more}).encode()
        path = self.root / "input.yaml"
        path.write_bytes(data)
        path.chmod(0o600)
        return hashlib.sha256(data).hexdigest()

    def rolled_back(self, sha256: str, serial: int = 0) -> None:
        """Put a rollback to r1 in force for the input with this digest."""
        self.ledger.note(ReleasePath("app/tags/r1"))
        self.ledger.note(ReleasePath("app/tags/r2"))
        then = {"node_document": THEN, "input_sha256": sha256, "serial": serial}
        self.ledger.roll_back(make.rollback("app/tags/r1", **then))

    def _resolve(self, path: ReleasePath) -> Release:
        self.resolved.append(path)
        if path.source == "gone":
            raise InvalidInputError(f"{path} does not exist", where="app")
        offered: dict[str, Json] = {
            "classes": {"base": {}},
            "layers": {"ams": {"parameters": {"dc": "ams"}}},
        }
        enc = ReleaseEnc.from_dict(offered)
        return Release(
            name=path,
            directory=self.root,
            modulepath=(self.root,),
            names=(self.root,),
            enc=CountedEnc(data=enc.data, layers=enc.layers),
            hiera_config=None,
            mutable=(),
        )

    def preparation(self, *, asks_enc: bool = False) -> RunPreparation:
        def never(*_: object) -> Any:
            raise AssertionError("no release is staged")

        return RunPreparation(
            own=self.root / "input.yaml",
            inputs=InputReader(
                documents=Documents(None),
                fetch=self.fetch,
                user_data=lambda: self.user_data,
                assigned=lambda: self.assigned,
            ),
            instance_facts=lambda: self.instance_facts,
            asks_enc=asks_enc,
            work_tree=never,
            immutable_only=False,
            ledger=self.ledger,
            releases=ReleaseProvider(
                offered=lambda _: False,
                resolve=self._resolve,
                staging=never,
                tools=never,
                reader=never,
                mutable=None,
            ),
            note=self.notes.append,
            applied_elsewhere=lambda _app: self.elsewhere.pop() if self.elsewhere else None,
            lock_store=Store(self.root.parent / "store").locks.take_for_run,
        )


@pytest.fixture
def site(tmp_path: Path) -> Site:
    root = tmp_path / "root"
    root.mkdir()
    return Site(root)


def document_of(found: Any) -> Mapping[str, Any]:
    assert found is not None
    document: Mapping[str, Any] = found.to_dict()
    return document


def test_preparing_a_run_does_each_step_once(site: Site) -> None:
    sha256 = site.write("app/tags/r1", layers=["ams"])
    before = sorted(site.root.rglob("*"))
    prepared = site.preparation().prepare(OPTIONS, set_release=site.named.append)
    assert sorted(site.root.rglob("*")) == before
    assert site.named == ["app/tags/r1"]
    assert (site.resolved, site.computed) == (["app/tags/r1"], 1)
    assert (prepared.loaded.sha256, prepared.release.name) == (sha256, "app/tags/r1")
    assert prepared.options == OPTIONS
    assert document_of(prepared.document) == {
        "classes": {"base": {}, "app": {"port": 80}},
        "parameters": {"dc": "ams"},
        "environment": "production",
    }
    assert site.notes == []


def test_with_an_enc_of_the_site_the_document_is_computed_by_the_run(site: Site) -> None:
    prepared = site.preparation(asks_enc=True).prepare(OPTIONS)
    assert (prepared.document, site.computed, len(site.resolved)) == (None, 0, 1)


def test_an_input_behind_a_url_is_fetched_once(site: Site) -> None:
    asked: list[str] = []

    class Fetch:
        def get(self, url: str, *, limit: int) -> bytes:
            asked.append(url)
            if len(asked) == 1:
                raise UnavailableError("did not answer", where=url)
            return b'{"app": "app/tags/r3"}'

    site.fetch = Fetch()
    url = "https://config.example.net/web01?token=secret"
    with pytest.raises(UnavailableError):
        site.preparation().prepare(OPTIONS, source=url)
    assert site.resolved == []
    prepared = site.preparation().prepare(OPTIONS, source=url)
    assert (asked, prepared.release.name) == ([url] * 2, "app/tags/r3")
    assert "secret" not in prepared.loaded.name


@pytest.mark.parametrize(
    "text", ["", "app: /etc", "app: app/tags/r1\nclasses: false", "app: app/tags/r1\nmore: 1"]
)
def test_an_invalid_input_is_refused_before_its_release_is_resolved(site: Site, text: str) -> None:
    (site.root / "input.yaml").write_text(text)
    with pytest.raises(InvalidInputError, match=r"input.yaml"):
        site.preparation().prepare(OPTIONS)
    assert site.resolved == []


def test_an_older_release_is_refused_before_it_is_resolved_unless_allowed(site: Site) -> None:
    for app in ("app/tags/r1", "app/tags/r2"):
        site.ledger.note(ReleasePath(app))
    with pytest.raises(InvalidInputError, match="r1: is older than app/tags/r2"):
        site.preparation().prepare(OPTIONS)
    assert site.resolved == []
    prepared = site.preparation().prepare(OPTIONS, allow_older=True)
    assert prepared.release.name == "app/tags/r1"


@pytest.mark.parametrize("app", ["app/tags/r2", "app/tags/r3", "app/trunk", "other/tags/r1"])
def test_a_newer_mutable_or_unrelated_release_is_accepted(site: Site, app: str) -> None:
    for applied in ("app/tags/r1", "app/tags/r2"):
        site.ledger.note(ReleasePath(applied))
    site.write(app)
    assert site.preparation().prepare(OPTIONS).release.name == app


def test_a_rollback_with_its_document_takes_precedence_over_input_and_enc(site: Site) -> None:
    site.rolled_back(site.write("app/tags/r2", layers=["ams"]))
    for asks_enc in (False, True):  # the rollback stays in force
        prepared = site.preparation(asks_enc=asks_enc).prepare(OPTIONS)
        assert (prepared.release.name, prepared.loaded.input.app) == ("app/tags/r1", "app/tags/r1")
        assert document_of(prepared.document) == THEN
        assert prepared.options.document == prepared.document, "so that the ledger does not move"
        assert prepared.loaded.name == f"rollback to run {RUN}"
    assert (site.resolved, site.computed) == (["app/tags/r1"] * 2, 0)
    assert site.notes[0].startswith(f"rolled back to app/tags/r1 by bob (run {RUN})")


@pytest.mark.parametrize(
    ("app", "noop", "allow_older", "ends"),
    [
        pytest.param("app/tags/r3", False, False, True, id="a changed input"),
        pytest.param("app/tags/r3", True, False, False, id="a changed input, noop"),
        pytest.param("app/tags/r2", False, True, True, id="allow older"),
    ],
)
def test_a_run_ends_a_rollback(
    site: Site, app: str, noop: bool, allow_older: bool, ends: bool
) -> None:
    site.rolled_back(site.write("app/tags/r2"))
    site.write(app)
    options = replace(OPTIONS, noop=noop)
    prepared = site.preparation().prepare(options, allow_older=allow_older)
    assert (prepared.release.name, prepared.options.document) == (app, None)
    assert (prepared.ends_rollback, site.notes) == (ends, [])
    assert site.ledger.rollback() is not None, "until the record of the run is open"


def test_a_rollback_does_not_affect_another_input(site: Site) -> None:
    site.rolled_back(site.write("app/tags/r2"))
    other = (site.root / "input.yaml").rename(site.root / "other.yaml")
    prepared = site.preparation().prepare(OPTIONS, source=str(other))
    assert (prepared.loaded.name, prepared.release.name) == (str(other), "app/tags/r2")
    assert site.ledger.rollback() is not None


def test_a_reinstalled_node_refuses_a_release_older_than_the_one_it_published(site: Site) -> None:
    """The timestamps of both tags decide; without them the release is accepted."""
    tag_time(site, ReleasePath("app/tags/r1"), 100)
    newer = AppliedElsewhere(release=ReleasePath("app/tags/r4"), tagged_at=400)
    site.elsewhere = [newer]
    with pytest.raises(InvalidInputError, match="than app/tags/r4, which this node published"):
        site.preparation().prepare(OPTIONS)
    for harmless in (
        replace(newer, tagged_at=100),
        replace(newer, tagged_at=None),
        replace(newer, release=ReleasePath("other/tags/r4")),
        None,
    ):
        site.elsewhere = [harmless]
        assert site.preparation().prepare(OPTIONS).release.name == "app/tags/r1"
        assert site.elsewhere == [], "the bus was asked"


def test_the_bus_is_not_asked_if_the_ledger_or_an_option_decides(site: Site) -> None:
    tag_time(site, ReleasePath("app/tags/r1"), 100)
    newer = AppliedElsewhere(release=ReleasePath("app/tags/r4"), tagged_at=400)
    site.elsewhere = [newer]
    site.preparation().prepare(OPTIONS, allow_older=True)
    site.ledger.note(ReleasePath("app/tags/r1"))
    site.preparation().prepare(OPTIONS)
    site.write("app/trunk")
    site.preparation().prepare(OPTIONS)
    assert site.elsewhere == [newer]


def tag_time(site: Site, app: ReleasePath, time: int) -> None:
    pin = make.pin("app", app.rpartition("/")[2])
    memory = TagMemory(site.root / "var")
    memory.note_pin(app, pin)
    memory.note_time(pin.tag_object, time)


def test_gc_is_refused_until_the_run_is_on_record_or_its_preparation_failed(site: Site) -> None:
    store = Store(site.root.parent / "store")
    prepared = site.preparation().prepare(OPTIONS)
    other = site.preparation().prepare(OPTIONS)
    for run in (prepared, other):
        with pytest.raises(BusyError, match="a run is being prepared"):
            store.locks.take_for_removal()
        run.release_store()
    alone = store.locks.take_for_removal()
    with pytest.raises(BusyError, match="releases are being removed"):
        site.preparation().prepare(OPTIONS)
    alone.release()
    site.write("gone/tags/r1")
    with pytest.raises(InvalidInputError):
        site.preparation().prepare(OPTIONS)
    store.locks.take_for_removal().release()


def assigned(release: str, serial: int, **more: Any) -> Assignment:
    return make.assignment(release, serial, at="2026-11-22T11:00:00.000000Z", **more)


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

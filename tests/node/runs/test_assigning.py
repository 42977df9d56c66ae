"""Assignments on a node: what is refused before anything changes, and the way back.

Staging, store, ledger and records are real; Puppet's parser is a program of the test.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.formats.documents import Documents
from localpuppet.base.formats.names import ReleasePath
from localpuppet.node.enc.assigned import AssignedRelease
from localpuppet.node.enc.assignment import Assignment
from localpuppet.node.enc.input import InputReader
from localpuppet.node.releases.ledger import Ledger
from localpuppet.node.runs.assigning import AssignmentService
from localpuppet.node.runs.run import Outcome, RunState
from tests.doubles.ports import FakeChild, Started
from tests.node.releases.test_provider import VERSION, Provided
from tests.rigs.recorded import Recorded
from tests.rigs.staged import R1, R2, url
from tests.rigs.supervised import NO_FETCH

PLACE = {"directory": 0, "file": "web/manifests/init.pp", "line": 1}
PARAMETERS = {
    "port": {"type": "Integer", "required": False, "default": "80"},
    "key": {"type": "Sensitive[String]", "required": False, "default": "x"},
}


def wants(release: ReleasePath = R1, serial: int = 1, **more: Any) -> Assignment:
    return Assignment(release=release, serial=serial, by="choria=alice", **more)


class Site(Provided):
    """A node that takes releases of `web` by request."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.site.release(R2)
        (root / "default.pp").touch()
        self.recorded = Recorded(root)
        self.runs = 0
        self.ledger = Ledger(self.site.state)
        self.kept = AssignedRelease(self.site.state)
        self.input("web/assigned")
        self.confirmed: set[int] = set()
        self.notes: list[str] = []
        self.assigning = AssignmentService(
            own=root / "input.yaml",
            inputs=InputReader(
                documents=Documents(None),
                fetch=NO_FETCH,
                user_data=NO_FETCH.user_data,
                assigned=self.kept.read,
            ),
            assigned=self.kept,
            ledger=self.ledger,
            records=self.recorded.records,
            good_runs=self.recorded.good_runs,
            releases=self.provider(),
            reader=self._reader(),
            answer=lambda: None,
            keep=self.site.store.locks.take_for_run,
            clock=self.recorded.clock,
            confirm=0.0,
            confirmed=lambda assignment: assignment.serial in self.confirmed,
            note=self.notes.append,
        )

    def _parser(self, _started: Started) -> FakeChild:
        said = {
            "schema": 3,
            "puppet": VERSION,
            "modules": {"web": {"data": False}},
            "errors": [],
            "classes": {"web": {**PLACE, "parameters": PARAMETERS}},
            "needs": [],
        }
        return FakeChild([json.dumps(said).encode() + b"\n"])

    def input(self, app: str) -> None:
        text = json.dumps({"app": app, "classes": {"web": {}}})
        (self.site.root / "input.yaml").write_text(text)

    def ran(self, app: ReleasePath, outcome: Outcome = Outcome.CHANGED) -> str:
        """Have a run of a release in the record; return its id."""
        self.ledger.note(app)
        run = self.recorded.records.create(self.recorded.clock)
        self.runs += 1
        document = {"classes": {"web": {"port": self.runs}}}
        request = self.recorded.request(run, release=app, node_document=document)
        run.open(request, self.recorded.status(run, release=app))
        run.close(self.recorded.status(run, release=app, state=RunState.FINISHED, outcome=outcome))
        return run.id


@pytest.fixture
def node(tmp_path: Path) -> Site:
    return Site(tmp_path)


def test_a_release_is_staged_first_and_taken_with_what_led_to_it(node: Site) -> None:
    node.assigning.stage(wants())
    assert (node.site.says(R1), node.kept.read()) == ("r1", None)
    newest = node.ran(R1)
    given = wants(classes={"web": {"port": 81}}, rollout="20261122T110000Z-0a1b")
    node.assigning.take(given)
    held = node.kept.read()
    assert held is not None
    assert held.same(given)
    assert held.after == newest
    node.ran(R1)
    node.assigning.take(given)
    assert node.kept.read() == held, "asked again, nothing changes"


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        (
            wants(serial=4),
            "has serial 4, but the assignment in force is web/tags/r1, assigned by choria=alice",
        ),
        (wants(classes={"web": {"port": "high"}}), "classes.web.port: .* must be Integer"),
        (wants(classes={"web": {"prot": 1}}), "has no parameter 'prot'.*did you mean 'port'"),
        (wants(classes={"other": {}}), "the release has no class 'other'"),
        (wants(classes={"web": {"key": "x"}}), "classes.web.key: is Sensitive, and the bus would"),
        (wants(layers=("ams",)), "the release has no layer 'ams'"),
        (wants(release=ReleasePath("dist/tags/r7")), "does not take releases of dist by request"),
    ],
)
def test_what_is_refused_changes_nothing(node: Site, assignment: Assignment, message: str) -> None:
    held = replace(wants(), at="2026-11-22T11:00:00.000000Z")
    node.kept.keep(held)
    if assignment.serial == 1:
        assignment = replace(assignment, serial=2)
    for does in (node.assigning.stage, node.assigning.take):
        with pytest.raises(InvalidInputError, match=message):
            does(assignment)
    assert node.kept.read() == held


def test_who_staged_for_long_does_not_take_the_place_of_what_was_taken_meanwhile(
    node: Site,
) -> None:
    """A child lives on when its agent is killed, and the next agent's child may be faster."""
    other = replace(wants(R2), by="choria=bob", at="2026-11-22T11:00:00.000000Z")

    def slow() -> None:
        node.kept.keep(other)

    late = replace(node.assigning, answer=slow)
    with pytest.raises(InvalidInputError, match="in force is web/tags/r2, assigned by choria=bob"):
        late.take(wants())
    assert node.kept.read() == other


def test_an_input_that_names_its_release_takes_none(node: Site) -> None:
    node.input("web/tags/r1")
    with pytest.raises(InvalidInputError, match=r"is web/tags/r1.*write app: web/assigned"):
        node.assigning.stage(wants())
    assert node.lent == [], "nothing was fetched for it"


def test_an_older_release_must_be_asked_for_as_such(node: Site) -> None:
    for app in (R1, R2):
        node.assigning.stage(wants(app))
        node.ran(app)
    with pytest.raises(InvalidInputError, match=r"web/tags/r1 is older than web/tags/r2.*'older'"):
        node.assigning.take(wants(R1))
    node.assigning.take(wants(R1, allow_older=True))
    held = node.kept.read()
    assert held is not None
    assert held.release == R1


def test_a_release_without_a_lock_is_not_deployed(node: Site) -> None:
    node.input("plain/assigned")
    directory = node.site.modules / "plain/tags/r1"
    directory.mkdir(parents=True)
    (directory / "manifest.yaml").write_text("modulepath: []\n")
    with pytest.raises(
        InvalidInputError, match=r"has no manifest.lock: localpuppet deploys locked"
    ):
        node.assigning.stage(wants(ReleasePath("plain/tags/r1")))


def test_a_server_that_is_away_changes_nothing(node: Site) -> None:
    node.site.servers.away.add(url("web"))
    with pytest.raises(UnavailableError):
        node.assigning.take(wants())
    assert node.kept.read() is None


def test_a_way_back_is_the_newest_good_run_of_before_whatever_its_release(node: Site) -> None:
    """Also where the same release was assigned with other values, and ran well with them."""
    for app, serial in ((R1, 1), (R2, 2)):
        node.assigning.take(wants(app, serial))
        good = node.ran(app)
    node.ran(R2, Outcome.FAILED)
    again = wants(R2, 3, classes={"web": {"port": 82}})
    node.assigning.take(again)
    node.ran(R2)
    for _ in range(2):  # asked again, it is the same
        node.assigning.go_back(again)
    rollback = node.ledger.rollback()
    assert rollback is not None
    assert (rollback.release, rollback.run, rollback.serial) == (R2, good, 3)
    assert rollback.node_document == {"classes": {"web": {"port": 2}}}
    assert (rollback.user, rollback.input_release) == ("choria=alice", R2)


def test_only_the_assignment_in_force_is_left_and_only_by_who_gave_it(node: Site) -> None:
    node.assigning.take(wants())
    for other in (wants(serial=2), wants(R2), wants(rollout="x"), replace(wants(), by="choria=b")):
        node.assigning.go_back(other)
    with pytest.raises(InvalidInputError, match="no good run of a release of 'web'"):
        node.assigning.go_back(wants())
    assert node.ledger.rollback() is None


def test_what_is_taken_says_how_long_its_confirmation_may_take(node: Site) -> None:
    """Asked for again under other settings it is the same, and the node itself may leave it."""
    node.assigning.take(wants())
    node.ran(R1)
    replace(node.assigning, confirm=90.0).take(wants(R2, 2))
    node.assigning.take(wants(R2, 2))
    held = node.kept.read()
    assert held is not None
    assert (held.release, held.confirm) == (R2, 90.0)
    node.assigning.go_back(held, by="this node: no connection")
    rollback = node.ledger.rollback()
    assert rollback is not None
    assert (rollback.release, rollback.user) == (R1, "this node: no connection")


def test_nothing_goes_back_to_what_was_not_confirmed(node: Site) -> None:
    """Two releases within the time of a confirmation: the second cuts off, the first may have."""
    site = replace(node.assigning, confirm=90.0)
    good = node.ran(R1)
    for serial, app in enumerate((R1, R1, R2, R2), 1):
        site.take(wants(app, serial))
        if serial == 1:
            good = node.ran(app)
            node.confirmed = {1}
        elif serial != 4:
            node.ran(app)
    site.go_back(wants(R2, 4))
    rollback = node.ledger.rollback()
    assert rollback is not None
    assert (rollback.release, rollback.run) == (R1, good)
    node.confirmed = {1, 4}
    good = node.ran(R2)
    site.take(wants(R1, 5, allow_older=True))
    held = node.kept.read()
    assert held is not None
    assert (held.back_to, Assignment.from_dict(held.to_dict())) == (good, held)


def test_where_nothing_was_ever_confirmed_there_is_no_way_back(node: Site) -> None:
    site = replace(node.assigning, confirm=90.0)
    site.take(wants(R1, 1))
    node.ran(R1)
    site.take(wants(R2, 2))
    with pytest.raises(InvalidInputError, match="and was confirmed if it had to be"):
        site.go_back(wants(R2, 2))


def test_an_input_that_names_its_release_by_now_is_left_as_it_is(node: Site) -> None:
    node.assigning.take(wants())
    node.ran(R1)
    node.assigning.take(wants(R2, 2))
    node.input("web/tags/r2")
    node.assigning.go_back(wants(R2, 2))
    assert node.ledger.rollback() is None

"""Assignments on a node: refusals that change nothing, and going back.

Staging, store, ledger and records are real; Puppet's parser is a program of the test.
"""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from localpuppet.base.errors import InvalidInputError, UnavailableError
from localpuppet.base.formats.documents import Documents
from localpuppet.base.formats.names import ReleasePath
from localpuppet.node.enc.assignment import AssignedRelease, Assignment
from localpuppet.node.enc.input import InputReader
from localpuppet.node.releases.release_records import Ledger
from localpuppet.node.runs.preparing import AssignmentService
from localpuppet.node.runs.run import Outcome, RunState
from tests.doubles.ports import FakeChild, Started
from tests.node.make import assignment as wants
from tests.node.releases.test_provider import VERSION, Provided
from tests.rigs.recorded import Recorded
from tests.rigs.staged import R1, R2, url
from tests.rigs.supervised import NO_FETCH

PLACE = {"directory": 0, "file": "web/manifests/init.pp", "line": 1}
PARAMETERS = {
    "port": {"type": "Integer", "required": False, "default": "80"},
    "key": {"type": "Sensitive[String]", "required": False, "default": "x"},
}


class Site(Provided):
    """A node that accepts releases of `web` by request."""

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
            reader=self.reader(),
            answer=lambda: None,
            lock_store=self.site.store.locks.take_for_run,
            clock=self.recorded.clock,
            confirm=0.0,
            open_groups=lambda _release: None,
            confirmed=lambda assignment: assignment.serial in self.confirmed,
            note=self.notes.append,
        )

    def _parser(self, _started: Started) -> FakeChild:
        parsed = {
            "schema": 4,
            "puppet": VERSION,
            "implementation": "puppet",
            "modules": {"web": False},
            "problems": [],
            "classes": {"web": {"place": PLACE, "parameters": PARAMETERS}},
            "needs": [],
        }
        return FakeChild([json.dumps(parsed).encode() + b"\n"])

    def input(self, app: str) -> None:
        text = json.dumps({"app": app, "classes": {"web": {}}})
        (self.site.root / "input.yaml").write_text(text)

    def ran(self, app: ReleasePath, outcome: Outcome = Outcome.CHANGED) -> str:
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


def test_a_release_is_staged_and_then_assigned_with_the_newest_run_before_it(node: Site) -> None:
    node.assigning.stage(wants())
    assert (node.site.says(R1), node.kept.read()) == ("r1", None)
    newest = node.ran(R1)
    assignment = wants(classes={"web": {"port": 81}}, rollout="20261122T110000Z-0a1b")
    node.assigning.take(assignment)
    held = node.kept.read()
    assert held is not None
    assert held.same(assignment)
    assert held.after == newest
    node.ran(R1)
    node.assigning.take(assignment)
    assert node.kept.read() == held, "a repetition changes nothing"


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
        (wants(ReleasePath("dist/tags/r7")), "does not take releases of dist by request"),
    ],
)
def test_a_refusal_changes_nothing(node: Site, assignment: Assignment, message: str) -> None:
    held = replace(wants(), at="2026-11-22T11:00:00.000000Z")
    node.kept.keep(held)
    if assignment.serial == 1:
        assignment = replace(assignment, serial=2)
    for does in (node.assigning.stage, node.assigning.take):
        with pytest.raises(InvalidInputError, match=message):
            does(assignment)
    assert node.kept.read() == held


def test_slow_staging_does_not_replace_a_release_that_was_assigned_meanwhile(node: Site) -> None:
    """A child outlives its killed agent, and the child of the next agent may be faster."""
    other = replace(wants(R2), by="choria=bob", at="2026-11-22T11:00:00.000000Z")

    def slow() -> None:
        node.kept.keep(other)

    late = replace(node.assigning, answer=slow)
    with pytest.raises(InvalidInputError, match="in force is web/tags/r2, assigned by choria=bob"):
        late.take(wants())
    assert node.kept.read() == other


def test_an_input_that_names_its_release_accepts_no_assignment(node: Site) -> None:
    node.input("web/tags/r1")
    with pytest.raises(InvalidInputError, match=r"is web/tags/r1.*write app: web/assigned"):
        node.assigning.stage(wants())
    assert node.lent == [], "no release was fetched"


def test_an_older_release_is_accepted_only_with_allow_older(node: Site) -> None:
    for app in (R1, R2):
        node.assigning.stage(wants(app))
        node.ran(app)
    with pytest.raises(InvalidInputError, match=r"web/tags/r1: is older than web/tags/r2.*'older'"):
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


def test_an_unreachable_server_changes_nothing(node: Site) -> None:
    node.site.servers.away.add(url("web"))
    with pytest.raises(UnavailableError):
        node.assigning.take(wants())
    assert node.kept.read() is None


def test_going_back_uses_the_newest_good_run_before_the_assignment(node: Site) -> None:
    """Also if the same release was assigned with other values, and its run succeeded."""
    for app, serial in ((R1, 1), (R2, 2)):
        node.assigning.take(wants(app, serial))
        good = node.ran(app)
    node.ran(R2, Outcome.FAILED)
    again = wants(R2, 3, classes={"web": {"port": 82}})
    node.assigning.take(again)
    node.ran(R2)
    for _ in range(2):  # a repetition changes nothing
        node.assigning.go_back(again)
    rollback = node.ledger.rollback()
    assert rollback is not None
    assert (rollback.release, rollback.run, rollback.serial) == (R2, good, 3)
    assert rollback.node_document == {"classes": {"web": {"port": 2}}}
    assert (rollback.user, rollback.input_release) == ("choria=alice", R2)


def test_only_the_assignment_in_force_can_be_left_and_only_by_its_author(node: Site) -> None:
    node.assigning.take(wants())
    for other in (wants(serial=2), wants(R2), wants(rollout="x"), replace(wants(), by="choria=b")):
        node.assigning.go_back(other)
    with pytest.raises(InvalidInputError, match="no good run of a release of 'web'"):
        node.assigning.go_back(wants())
    assert node.ledger.rollback() is None


def test_an_assignment_records_the_deadline_of_its_confirmation(node: Site) -> None:
    """A repetition with other settings does not change it, and the node itself may leave it."""
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


def test_going_back_skips_unconfirmed_runs(node: Site) -> None:
    """Two releases within the time of a confirmation: the first may have disconnected the node."""
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


def test_without_a_confirmed_run_going_back_is_refused(node: Site) -> None:
    site = replace(node.assigning, confirm=90.0)
    site.take(wants(R1, 1))
    node.ran(R1)
    site.take(wants(R2, 2))
    with pytest.raises(InvalidInputError, match="and was confirmed if it had to be"):
        site.go_back(wants(R2, 2))


def test_going_back_does_not_affect_an_input_that_names_its_release(node: Site) -> None:
    node.assigning.take(wants())
    node.ran(R1)
    node.assigning.take(wants(R2, 2))
    node.input("web/tags/r2")
    node.assigning.go_back(wants(R2, 2))
    assert node.ledger.rollback() is None

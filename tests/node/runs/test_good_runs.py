"""The last good run of each release, which outlives the run records."""

import shutil
from collections.abc import Callable
from datetime import timedelta
from multiprocessing import get_context
from pathlib import Path

import pytest

from localpuppet.base.errors import StateError
from localpuppet.base.formats.names import ReleasePath, RunId
from localpuppet.node.runs.run import Outcome, Status, new_run_id
from localpuppet.node.runs.run_records import GoodRun
from tests.rigs.recorded import Recorded, in_the_way

R1, R2 = ReleasePath("web/tags/r1"), ReleasePath("web/tags/r2")

# 10,000 pass, too, but need a minute on a busy disk.
VERY_MANY = 500


@pytest.fixture
def site(tmp_path: Path) -> Recorded:
    return Recorded(tmp_path)


def of(app: str) -> Callable[[RunId, ReleasePath], bool]:
    return lambda _, other: other == app


def found(site: Recorded, app: str) -> RunId | None:
    """Return the run to which the node would go back for a release, with its document."""
    good = site.good_runs.newest(of(app))
    if good is None:
        return None
    assert good.node_document == {"classes": {"web": {"run": good.run}}}
    return good.run


def supervise(site: Recorded, status: Status, *, runs: int = 1) -> None:
    """Do what a supervisor does after each run."""
    site.good_runs.keep(status)
    site.records.prune(runs=runs, days=90, keep=status.id, before=site.good_runs.keep)


def test_a_good_run_outlives_its_record(site: Recorded) -> None:
    good = site.ran(R1)
    supervise(site, good)
    for number in range(5):
        supervise(site, site.ran(R2, Outcome.FAILED if number % 2 else Outcome.UNCHANGED))
    assert len(site.records.ids()) == 1
    assert found(site, R1) == good.id


@pytest.mark.parametrize(
    ("outcome", "more"),
    [
        (Outcome.FAILED, {}),
        (Outcome.INTERRUPTED, {}),
        (Outcome.CHANGED, {"noop": True}),
        (Outcome.CHANGED, {"partial": True}),
        (Outcome.CHANGED, {"work_tree": "/srv/web"}),
    ],
)
def test_a_failed_noop_or_partial_run_does_not_replace_a_good_run(
    site: Recorded, outcome: Outcome, more: dict[str, bool | str]
) -> None:
    good = site.ran(R1)
    supervise(site, good)
    supervise(site, site.ran(R1, outcome, **more))
    assert found(site, R1) == good.id


def test_runs_of_mutable_releases_are_not_stored(site: Recorded) -> None:
    for app in ("web/trunk", "web/branches/main", "?"):
        site.good_runs.keep(site.ran(app))
        assert found(site, app) is None
        assert site.good_runs.releases() == set()


def test_each_source_keeps_its_newest_releases(site: Recorded) -> None:
    for number in range(8):
        for source in ("web", "db/eu"):
            supervise(site, site.ran(f"{source}/tags/r{number}"))
    supervise(site, site.ran("web/tags/r0"))
    kept = {f"db/eu/tags/r{number}" for number in range(3, 8)}
    kept |= {f"web/tags/r{number}" for number in (0, 4, 5, 6, 7)}
    assert site.good_runs.releases() == kept
    assert len(list(site.good.glob("*.json"))) == 10


def test_an_older_run_does_not_replace_a_newer_one(site: Recorded) -> None:
    first, second = site.ran(R1), site.ran(R1)
    for status in (second, first):
        site.good_runs.keep(status)
    shutil.rmtree(site.records.directory)
    assert found(site, R1) == second.id


def test_an_unstored_good_run_is_stored_before_its_record_is_removed(site: Recorded) -> None:
    """Its supervisor was killed after it closed the record."""
    good = site.ran(R1)
    assert found(site, R1) == good.id
    assert site.good_runs.releases() == {R1}
    supervise(site, site.ran(R2))
    assert site.records.ids() != []
    assert found(site, R1) == good.id


def test_good_runs_are_ordered_by_run_and_not_by_clock(site: Recorded) -> None:
    site.clock.advance(900 * 86400)
    supervise(site, site.ran(R1))
    site.clock.advance(-900 * 86400)
    supervise(site, site.ran(R2))
    good = site.good_runs.newest(lambda _run, _app: True)
    assert good is not None
    assert good.release == R2


@pytest.mark.parametrize("damage", ["", "{", "[]", '{"schema": 1}', '{"schema": 2}', "\0"])
def test_a_damaged_file_affects_only_its_release(site: Recorded, damage: str) -> None:
    for app in (R1, R2):
        supervise(site, site.ran(app))
    file = site.good / "web%tags%r2.json"
    file.write_text(damage)
    shutil.rmtree(site.records.directory)
    assert found(site, R2) is None
    assert found(site, R1) is not None
    assert site.good_runs.releases() == {R1, R2}, "gc must not remove a release with a damaged file"
    good = site.ran(R2)
    supervise(site, good)
    shutil.rmtree(site.records.directory)
    assert found(site, R2) == good.id


def test_an_invalid_field_is_damage_of_a_good_run(site: Recorded) -> None:
    site.good_runs.keep(site.ran(R1))
    good = site.good_runs.newest(of(R1))
    assert good is not None
    assert GoodRun.from_dict(good.to_dict()) == good
    for field, value in (
        ("release", "../x"),
        ("run", 7),
        ("finished_at", "x"),
        ("node_document", []),
    ):
        with pytest.raises(StateError, match="is damaged"):
            GoodRun.from_dict({**good.to_dict(), field: value})


def test_if_a_good_run_cannot_be_stored_its_record_is_kept(site: Recorded) -> None:
    good = site.ran(R1)
    in_the_way(site.good / "web%tags%r1.json")
    last = site.ran(R2)
    with pytest.raises(StateError):
        site.records.prune(runs=1, days=90, keep=last.id, before=site.good_runs.keep)
    assert found(site, R1) == good.id
    assert not list(site.good.glob(".*"))


def test_an_unreadable_directory_is_an_error_and_not_empty(site: Recorded) -> None:
    site.good.write_text("a file")
    for ask in (site.good_runs.releases, lambda: site.good_runs.newest(of(R1))):
        with pytest.raises(StateError):
            ask()


def test_two_processes_that_prune_lose_no_good_run(site: Recorded) -> None:
    """A run can start while the previous one still prunes, if its Puppet survived SIGKILL."""
    last = {f"web/tags/r{number}": site.ran(f"web/tags/r{number}").id for number in range(5)}
    for number in range(60):
        app = f"web/tags/r{number % 5}"
        last[app] = site.ran(app).id
    newest = site.records.ids()[0]

    def prune() -> None:
        site.records.prune(runs=1, days=90, keep=newest, before=site.good_runs.keep)

    processes = [get_context("fork").Process(target=prune) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0, 0]
    assert site.records.ids() == [newest]
    assert {app: found(site, app) for app in last} == last


def test_pruning_many_records_keeps_the_good_run_of_each_release(site: Recorded) -> None:
    first = site.ran(R1)
    whole = site.records.directory / first.id
    for minute in range(1, VERY_MANY):
        name = new_run_id(first.id.time + timedelta(minutes=minute), "0000", None)
        target = site.records.directory / name
        target.mkdir()
        for file in ("request.json", "status.json"):
            text = (whole / file).read_text().replace(first.id, name)
            (target / file).write_text(text.replace(R1, R2))
    last = site.ran("web/tags/r3")
    assert len(site.records.ids()) == VERY_MANY + 1
    supervise(site, last, runs=100)
    ids = site.records.ids()
    assert (len(ids), ids[0]) == (100, last.id)
    assert [found(site, app) for app in (R1, R2, last.release)] == [first.id, ids[1], last.id]

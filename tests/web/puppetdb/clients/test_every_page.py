"""Every page of Puppetboard, unmodified, with three real nodes and with a thousand."""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path

import pytest
from selenium import webdriver

from localpuppet.fleet.history.history_records import RunCounts
from localpuppet.fleet.inventory.query.evaluating import Evaluation
from localpuppet.fleet.inventory.query.records import CombinedRecords
from localpuppet.fleet.inventory.run_end import Kind
from localpuppet.node.puppet.resources import ResourceResult
from localpuppet.web.puppetdb.app import population
from localpuppet.web.puppetdb.catalogs import CatalogSource
from tests.doubles.inventory import MemoryInventory
from tests.fleet.inventory.query.fleet import entry
from tests.fleet.make import a_part
from tests.web.puppetdb.clients.board import BoardVisitor, puppetboard
from tests.web.puppetdb.clients.real_nodes import NAMES
from tests.web.puppetdb.clients.replay import exchange
from tests.web.puppetdb.served import MINUTE, NOW, PlayedRuns, ServedApi, node, run

pytestmark = [pytest.mark.long, pytest.mark.slow]

DB, LB, WEB = NAMES
MANY = [f"node{number:04}.example.com" for number in range(1000)]
FAILED = MANY[::25]
CHANGED = MANY[1::10]
BROKEN = a_part(
    "Exec[migrate]", status=ResourceResult.FAILED, file="db.pp", line=7, containing_class="Site"
)
FILE = a_part("File[/etc/motd]", status=ResourceResult.CHANGED)
REASON = "Exec[migrate]: returned 1 instead of one of [0]"


def pages(env: str, name: str, report: str) -> list[tuple[str, tuple[str, ...]]]:
    """Return the pages that need no catalog, and what each must show of a failed node.

    Args:
        env: The environment in the path; `*` for all.
    """
    return [
        (f"/{env}/", (name, "with status failed")),
        (f"/{env}/nodes", (name,)),
        (f"/{env}/nodes?status=failed", (name,)),
        (f"/{env}/nodes?status=changed", ()),
        (f"/{env}/nodes?status=unreported", ()),
        (f"/{env}/node/{name}", (name,)),
        (f"/{env}/failures", (name,)),
        (f"/{env}/failures/raw", (name,)),
        (f"/{env}/reports", (name,)),
        (f"/{env}/reports/{name}", (name,)),
        (f"/{env}/report/{name}/{report}", (name,)),
        (f"/{env}/report/{name}/{report}/raw", (name,)),
        (f"/{env}/facts", ("role", "os")),
        (f"/{env}/fact/role", (name,)),
        (f"/{env}/fact/role/%22db%22", (name,)),
        (f"/{env}/fact/os.family", (name, "Debian")),
        (f"/{env}/inventory", (name.partition(".")[0][:5],)),
        (f"/{env}/metrics", ("num-nodes",)),
        (f"/{env}/metric/puppetlabs.puppetdb.population:name=num-nodes", ("Value",)),
        (f"/{env}/catalogs", (name,)),
        (f"/{env}/classes", ("Site",)),
        (f"/{env}/class_resource/Site", (name,)),  # of what the page before has read
        (f"/{env}/radiator", ("Failed",)),
        (f"/{env}/query", ()),
    ]


@pytest.mark.parametrize("env", ["*", "production"])
def test_every_page_works_with_real_nodes(
    api: str, clients_python: Path, driver: webdriver.Chrome, tmp_path: Path, env: str
) -> None:
    _, known = exchange(api, "GET", f"/pdb/query/v4/nodes/{DB}")
    report = known["latest_report_hash"]
    catalogs = [
        (f"/{env}/catalog/{WEB}", ("Site::Apache",)),
        (f"/{env}/catalogs/compare/{WEB}...{LB}", ("Site::Apache",)),
    ]
    with puppetboard(clients_python, tmp_path, api) as address:
        board = BoardVisitor(driver, address)
        for path, texts in chain(pages(env, DB, report), catalogs):
            board.shows(path, *texts)


@pytest.fixture
def thousand(tmp_path: Path) -> Iterator[str]:
    """Serve the API with a thousand nodes; yield its address."""
    runs = [
        run(name, NOW - day * 1440 * MINUTE - number, Kind.UNCHANGED, counts=RunCounts(total=80))
        for number, name in enumerate(MANY)
        for day in (3, 2, 1)
    ]
    failed = {"resources": (BROKEN, FILE), "reason": REASON}
    runs += [run(name, NOW - MINUTE, Kind.FAILED, **failed) for name in FAILED]
    runs += [run(name, NOW - MINUTE, Kind.CHANGED, resources=(FILE,)) for name in CHANGED]
    states = [
        node(name, outcome=Kind.FAILED if name in FAILED else Kind.UNCHANGED) for name in MANY
    ]
    entries = [
        entry(
            name,
            {
                "role": "db" if name in FAILED else "web",
                "os": {"family": "Debian", "name": "Debian", "architecture": "amd64"},
                "networking": {"ip": "192.0.2.1", "hostname": name.partition(".")[0]},
                "kernelrelease": "6.1.0",
                "puppetversion": "7.23.0",
            },
            classes=("site",),
            environment="production",
        )
        for name in MANY
    ]
    played = PlayedRuns(runs, states)
    reader = MemoryInventory(entries)
    catalogs = CatalogSource(reader, lambda _: [], played.records)
    records = CombinedRecords([played.records, catalogs])
    sources = {"metrics": lambda: population(Evaluation(reader, records))}
    with ServedApi(tmp_path, reader, records=played.records, sources=sources) as served:
        reader.current = served.clock.now().timestamp()
        yield f"http://127.0.0.1:{served.port}"


def test_every_page_works_with_a_thousand_nodes(
    thousand: str, clients_python: Path, driver: webdriver.Chrome, tmp_path: Path
) -> None:
    _, known = exchange(thousand, "GET", f"/pdb/query/v4/nodes/{FAILED[0]}")
    with puppetboard(clients_python, tmp_path, thousand) as address:
        board = BoardVisitor(driver, address)
        shown = board.shows("/*/", f"{len(FAILED)} nodes\nwith status failed")
        assert f"{len(CHANGED)} nodes\nwith status changed" in shown
        assert "1000\nPopulation" in shown
        for path, texts in pages("*", FAILED[0], known["latest_report_hash"]):
            board.shows(path, *texts)

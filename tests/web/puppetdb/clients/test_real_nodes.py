"""Clients of PuppetDB, unmodified, with three real nodes."""

import json
import os
import subprocess
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from selenium import webdriver

from tests.rigs.node import PATIENCE
from tests.web.puppetdb.clients.board import BoardVisitor, puppetboard
from tests.web.puppetdb.clients.real_nodes import NAMES, RELATION, RealNodes
from tests.web.puppetdb.clients.replay import exchange, recorded

pytestmark = pytest.mark.slow(seconds=60)

DB, LB, WEB = NAMES
SESSION = Path(__file__).with_name("pypuppetdb_session.py")


@pytest.fixture(scope="module")
def failed_report(api: str) -> str:
    """Return the hash of the report that failed."""
    status, node = exchange(api, "GET", f"/pdb/query/v4/nodes/{DB}")
    assert status == 200, node
    hash_: str = node["latest_report_hash"]
    return hash_


def test_pypuppetdb_reads_everything(api: str, clients_python: Path) -> None:
    port = str(urlsplit(api).port)
    done = subprocess.run(
        [str(clients_python), str(SESSION), port],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout)
    assert int(answers.pop("version").split(".")[0]) >= 7
    assert answers.pop("aggregate")[0]["failures"] == 1
    # The node does not publish values, such as a title with blanks.
    assert answers.pop("logs") == ["… returned 1 instead of one of [0]"]
    metrics = answers.pop("metrics of a report")
    assert (metrics["failure"], metrics["success"]) == (1, 0)
    assert answers == {
        "nodes": NAMES,
        "states": {DB: "failed", LB: "noop", WEB: "changed"},
        "failures": 1,
        "noops": 1,
        "facts of a node": "db",
        "facts by value": [LB],
        "facts by query": ["Linux"],
        "fact names": True,
        "fact paths": True,
        "fact contents": ["db", "lb", "web"],
        "factsets": NAMES,
        "inventory": {DB: "db", LB: "lb", WEB: "web"},
        "environments": ["production"],
        "classes": ["Settings", "Site", "Site::Apache", "main"],
        "exported": ["node"],
        "report": "failed",
        "reports": ["changed", "changed"],
        "total": 5,
        "events": [["failure", "Exec", "… (site/manifests/init.pp:17)", True]],
        "event counts": {DB: 1, LB: 0, WEB: 0},
        "by status": {"failed": 1, "changed": 1, "unchanged": 1},
        "pql": [DB],
        "pql of nodes": [WEB],
        "resources of a catalog": ["Settings", "Site", "Site::Apache", "main"],
        "edges of a catalog": True,
        "edges": True,
        "population": 3,
        "metrics": True,
    }


def test_clients_without_packages_get_what_they_read(api: str, failed_report: str) -> None:
    problems = [problem for one in recorded() for problem in one.problems(api, failed_report)]
    assert problems == []


def test_octocatalog_diff_compares_the_catalog_of_a_node_with_one_of_its_facts(
    api: str, clients: Path, nodes: RealNodes, tmp_path: Path
) -> None:
    """It compiles with the facts of the API, and compares with the catalog of the API."""
    root = clients / "octocatalog-diff"
    if not any(root.iterdir()):
        pytest.skip("this Debian does not have octocatalog-diff")
    gems = subprocess.run(
        ["ruby", "-e", "puts Gem.path.join(':')"], capture_output=True, text=True, check=True
    ).stdout.strip()
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(tmp_path),
        "LC_ALL": "C.UTF-8",
        "GEM_PATH": f"{root}/usr/share/rubygems-integration/all:{gems}",
        "RUBYLIB": f"{root}/usr/lib/ruby/vendor_ruby",
    }
    code = tmp_path / "code"
    (code / "manifests").mkdir(parents=True)
    web = nodes.members[0]
    modules = web.root / "modules" / "app" / "trunk"
    (code / "modules").symlink_to(modules)
    scripts = tmp_path / "scripts"  # the package is not installed, so they are not in /usr/share
    scripts.mkdir()
    for script in (root / "usr/share/octocatalog-diff/scripts").glob("*/*.sh"):
        (scripts / script.name).symlink_to(script)
    site = f"class {{ 'site': directory => '{web.root}', broken => false }}\nnotify {{ 'new': }}\n"
    (code / "manifests" / "site.pp").write_text(site)
    done = subprocess.run(
        [
            *("ruby", str(root / "usr/bin/octocatalog-diff"), "-n", WEB, "--from-puppetdb"),
            *("--puppetdb-url", api, "--bootstrapped-to-dir", str(code), "--no-enc"),
            *("--override-script-path", str(scripts), "--puppet-binary", "/usr/bin/puppet"),
            *("--output-format", "json", "--debug", "--ignore-attr", "kind"),
        ],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 2, done.stderr
    found = [
        (one["diff_type"], one["type"], one["title"]) for one in json.loads(done.stdout)["diff"]
    ]
    # Node[default] and Stage[main] differ, as with PuppetDB: its catalogs have aliases, no `kind`.
    declared = ("File", "Notify", "Prometheus::Scrape_job")
    assert [one for one in found if one[1] in declared] == [("+", "Notify", "new")], found


def test_puppetboard_shows_each_node_as_it_is(
    api: str, clients_python: Path, driver: webdriver.Chrome, failed_report: str, tmp_path: Path
) -> None:
    with puppetboard(clients_python, tmp_path, api) as address:
        board = BoardVisitor(driver, address)
        shown = board.shows("/", "1 node\nwith status failed", "1 node\nwith status pending", DB)
        assert "1 node\nwith status changed" in shown
        assert "0 nodes\nunreported" in shown
        board.shows("/nodes?status=failed", DB)
        board.shows("/reports", DB, LB, WEB)
        board.shows("/inventory", "db01", "lb01", "web01")
        board.shows(f"/report/{DB}/{failed_report}", "Exec[…]", RELATION)

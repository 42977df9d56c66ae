"""`localpuppet web --puppetdb` as a process: its users, its certificates, its answers."""

import os
import pwd
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest

from tests.doubles.certificates import Ca, pem, write
from tests.rigs.member import read_line
from tests.rigs.node import REPOSITORY, Node
from tests.rigs.waiting import PATIENCE
from tests.web.puppetdb.clients.replay import exchange

pytestmark = pytest.mark.server
STRANGER = pwd.getpwnam("daemon").pw_uid
VERSION = "/pdb/meta/v1/version"
_AS_STRANGER = f"""
import os, sys, urllib.request, urllib.error
os.setuid({STRANGER})
try:
    answer = urllib.request.urlopen(sys.argv[1])
    print(answer.status, answer.read().decode())
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
"""


class Api:
    """A process that serves only the API."""

    def __init__(self, node: Node, address: str) -> None:
        self.node = node
        self.process: subprocess.Popen[str] = node.start(
            "web", "--no-dashboard", "--puppetdb", address
        )
        line = read_line(self.process)
        assert line.startswith("PuppetDB API at http"), line
        self.url = line.split()[-1].rstrip("/")
        self.port = int(self.url.rpartition(":")[2])

    def get(self, path: str, **headers: str) -> tuple[int, Any]:
        return exchange(self.url, "GET", path, headers)

    def get_as_stranger(self, path: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", _AS_STRANGER, self.url + path],
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=True,
        ).stdout

    def end(self) -> int:
        self.process.send_signal(signal.SIGTERM)
        return self.node.finish(self.process).code


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    yield Node(tmp_path)


def test_an_unread_inventory_is_503_and_another_site_in_a_browser_is_refused(node: Node) -> None:
    node.settings(node="web01.example.com", buses={"etcd": {"servers": ["http://127.0.0.1:1"]}})
    api = Api(node, "127.0.0.1:0")
    status, text = api.get("/pdb/query/v4/nodes")
    assert (status, "was not read from the bus yet" in text) == (503, True)
    assert api.get(VERSION) == (200, {"version": "8.8.1"})
    assert api.get(VERSION, Host=f"localhost:{api.port}")[0] == 200
    assert api.get(VERSION, Host=f"evil.example.com:{api.port}")[0] == 403
    assert api.get(VERSION, Origin="http://evil.example.com")[0] == 403
    assert api.end() == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user")
def test_another_user_of_the_machine_reads_only_if_the_settings_list_it(node: Node) -> None:
    node.settings()
    api = Api(node, "127.0.0.1:0")
    assert api.get(VERSION)[0] == 200
    assert api.get_as_stranger(VERSION) == (
        f"403 Permission denied: No access: web.puppetdb.users does not list the user {STRANGER}."
        " Ask the operator of the dashboard to add the name to web.puppetdb.users in"
        " localpuppet.yaml; no restart is needed.\n"
    )
    node.settings(web={"puppetdb": {"users": ["daemon"]}})
    assert api.get_as_stranger(VERSION).startswith("200 ")
    node.settings(web={"puppetdb": {"users": ["no-such-user"]}})
    assert api.get_as_stranger(VERSION).startswith("503 ")
    assert api.end() == 0


def test_elsewhere_a_certificate_on_the_list_is_required(node: Node) -> None:
    now = datetime.now(UTC)
    since, until = now - timedelta(days=1), now + timedelta(days=1)
    ca = Ca(since=since, until=until)
    write(node.root / "ca.pem", ca.text)
    for name in ("fleet.example.com", "puppetboard", "web01.example.com"):
        issued = ca.issue(name, since=since, until=until, dns=[name])
        write(node.root / f"{name}.pem", issued.text)
        write(node.root / f"{name}.key", pem(issued.key), mode=0o600)
    web = {"certificate": "fleet.example.com.pem", "key": "fleet.example.com.key"}

    def settings(*names: str) -> None:
        node.settings(identity={"ca": "ca.pem"}, web={**web, "puppetdb": {"names": [*names]}})

    settings("puppetboard")
    api = Api(node, "0.0.0.0:0")

    def get(name: str) -> int:
        context = ssl.create_default_context(cafile=str(node.root / "ca.pem"))
        context.check_hostname = False
        context.load_cert_chain(node.root / f"{name}.pem", node.root / f"{name}.key")
        connection = HTTPSConnection("127.0.0.1", api.port, context=context, timeout=PATIENCE)
        connection.request("GET", VERSION, headers={"Host": f"fleet.example.com:{api.port}"})
        status: int = connection.getresponse().status
        connection.close()
        return status

    assert api.url == f"https://fleet.example.com:{api.port}"
    assert [get("puppetboard"), get("web01.example.com")] == [200, 403]
    settings("web01.example.com")  # without a restart
    assert [get("puppetboard"), get("web01.example.com")] == [403, 200]
    assert api.end() == 0


@pytest.mark.parametrize(
    ("options", "settings", "error"),
    [
        (["--puppetdb", "0.0.0.0:0"], {}, "web.puppetdb.names: lists no name"),
        (["--puppetdb", "8080"], {}, "--puppetdb: is not an address"),
        (["--no-dashboard"], {}, "--no-dashboard: requires --puppetdb"),
        (
            ["--puppetdb", "127.0.0.1:0"],
            {"web": {"puppetdb": {"users": ["no-such-user"]}}},
            "web.puppetdb.users: this machine has no user 'no-such-user'",
        ),
    ],
)
def test_a_wrong_option_or_setting_is_an_error_at_the_start(
    node: Node, options: list[str], settings: dict[str, Any], error: str
) -> None:
    node.settings(**settings)
    done = node.run("web", *options, code=2)
    assert error in done.err


def test_a_port_that_is_taken_is_an_error_at_the_start(node: Node) -> None:
    node.settings()
    with socket.create_server(("127.0.0.1", 0)) as other:
        place = f"127.0.0.1:{other.getsockname()[1]}"
        done = node.run("web", "--listen", "127.0.0.1:0", "--puppetdb", place)
    assert (done.code, done.out) == (1, "")
    assert "cannot listen: Address already in use (another port: --puppetdb" in done.err


def test_the_api_is_served_before_the_dashboard_is_imported(node: Node) -> None:
    """After a crash, programs get answers first."""
    node.settings()
    options = ("--listen", "127.0.0.1:0", "--puppetdb", "127.0.0.1:0")
    process = node.start("web", *options, PYTHONPROFILEIMPORTTIME="1")
    assert read_line(process).startswith("dashboard at")
    process.send_signal(signal.SIGTERM)
    imports = node.finish(process).err
    server = imports.index(" uvicorn.protocols.http.h11_impl\n")
    assert server < imports.index(" localpuppet.web.puppetdb.app\n")
    assert imports.index(" localpuppet.web.puppetdb.app\n") < imports.index(" jinja2\n")


def test_the_api_is_loaded_without_rollouts_and_the_views_of_the_dashboard() -> None:
    code = (
        "import sys\n"
        "import localpuppet.web.dashboard.memory\n"
        "from localpuppet.web.puppetdb import app, catalogs, report_views\n"
        "views = 'localpuppet.web.dashboard.inventory_questions', 'localpuppet.fleet.edges'\n"
        "print([name for name in sys.modules if name.startswith(('localpuppet.rollout', *views))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"PYTHONPATH": str(REPOSITORY)},
        check=True,
    )
    assert done.stdout == "[]\n"


def test_checked_settings_stay_private_and_a_changed_file_is_checked_again(node: Node) -> None:
    settings: dict[str, Any] = {
        "node": "web01.example.com",
        "buses": {"etcd": {"servers": ["http://127.0.0.1:1"]}},
    }
    node.settings(**settings)
    kept = node.root / "var" / "cache" / "documents"
    names = set()
    for expire in (None, "2d", "2d"):
        node.settings(**settings, **({"inventory": {"expire": expire}} if expire else {}))
        _start_and_end(node)
        names.add(tuple(sorted(file.name for file in kept.iterdir())))
    assert [len(found) for found in sorted(names, key=len)] == [1, 2], "one for each text"
    assert {oct(path.stat().st_mode & 0o777) for path in kept.iterdir()} == {"0o600"}
    assert oct(kept.stat().st_mode & 0o777) == "0o700"
    node.settings(**settings, inventory={"expired": "2d"})
    assert "expired" in node.run("web", "--no-dashboard", "--puppetdb", "127.0.0.1:0").err
    assert len([*kept.iterdir()]) == 2


def test_the_api_starts_where_no_settings_can_be_kept(node: Node) -> None:
    node.settings(node="web01.example.com", buses={"etcd": {"servers": ["http://127.0.0.1:1"]}})
    (node.root / "var" / "cache").mkdir(parents=True)
    (node.root / "var" / "cache" / "documents").write_text("no directory")
    _start_and_end(node)


def _start_and_end(node: Node) -> None:
    api = Api(node, "127.0.0.1:0")
    assert api.get(VERSION)[0] == 200
    assert api.end() == 0

"""From `git push` and its delivery to nodes: real git, real signatures, real agents."""

import json
import re
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from localpuppet.web.hooks.hook_worker import LookRecord, read_records
from tests.rigs.fleet import Fleet
from tests.rigs.member import Member, read_line
from tests.rigs.waiting import PATIENCE, wait_until
from tests.web.hooks.make import ReleaseRepository

SECRET = "0123456789abcdef0123456789abcdef"
POLICY = (
    "policy default deny\n"
    "allow\tchoria=a.example.com\tstatus disable enable runonce deploy:web/tags/*\t*\t*\n"
)


def github(body: bytes) -> dict[str, str]:
    digest = subprocess.run(
        ["openssl", "dgst", "-sha256", "-hmac", SECRET], input=body, capture_output=True, check=True
    ).stdout.split()[-1]
    return {"X-Hub-Signature-256": f"sha256={digest.decode()}"}


@dataclass
class Hooks:
    """A running `localpuppet web --hooks --no-dashboard`."""

    member: Member
    port: int

    def deliver(self, body: bytes, name: str = "web", **headers: str) -> int:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request("POST", f"/hooks/{name}", body, headers or github(body))
            return connection.getresponse().status
        finally:
            connection.close()

    def record(self) -> LookRecord:
        return read_records(self.member.node.state).get("web", LookRecord())

    def until(self, result: str) -> None:
        """Wait for the result of a release; another one is a failure at once."""
        before = self.record().result

        def over() -> bool:
            record = self.record()
            return record.result != before and not record.unfinished

        wait_until(over, lambda: str(self.record()))
        assert result in self.record().result, self.record()


@contextmanager
def serving(member: Member) -> Iterator[Hooks]:
    process = member.node.start("web", "--hooks", "127.0.0.1:0", "--no-dashboard")
    try:
        line = read_line(process)
        found = re.match(r"hooks at http://127\.0\.0\.1:(\d+)/hooks/NAME: ", line)
        assert found, line
        hooks = Hooks(member, int(found[1]))
        assert hooks.deliver(b"", "unknown") == 401
        wait_until(lambda: hooks.record().looked_at, lambda: str(hooks.record()))
        yield hooks
    finally:
        process.terminate()
        done = member.node.finish(process)
        assert (done.code, "Traceback" in done.err) == (0, False), done.err


class Shop:
    """A repository of releases, a signer, and a node that may get them."""

    def __init__(self, fleet: Fleet, directory: Path, action: dict[str, Any]) -> None:
        self.releases = ReleaseRepository(directory, "ssh")
        self.made_at = int(time.time())
        hook = {
            "type": "github",
            "secret_file": "secret",
            "source": "web",
            "caller": "a.example.com",
        }
        self.release("r1")
        shared: dict[str, Any] = {"sources": {"web": self.releases.source}}
        shared["allow_file_urls"] = True
        self.a = fleet.add_one("a", **shared, hooks={"web": {**hook, **action}})
        self.a.node.write("secret", SECRET, 0o600)
        self.b = fleet.add_one("b", puppet=True, **shared)
        self.b.node.write("policies/puppet.policy", POLICY)
        self.b.node.write("input.yaml", json.dumps({"app": "web/assigned", "classes": ["web"]}))

    def release(self, tag: str, *, signed: bool = True) -> None:
        """Push a release."""
        self.made_at += 1
        self.releases.push(tag, self.made_at, signed=signed)


def test_a_pushed_tag_is_staged_on_nodes_of_the_query(nats_fleet: Fleet, tmp_path: Path) -> None:
    """A delivery without a newer, signed tag changes nothing."""
    shop = Shop(nats_fleet, tmp_path, {"stage": "role=web"})
    nats_fleet.start()
    shop.b.publish_entry("web")
    with serving(shop.a) as hooks:
        assert "waits" in hooks.record().result  # the first look only remembers r1
        shop.release("r2")
        assert hooks.deliver(b'{"ref": "refs/tags/evil; reboot"}') == 202
        hooks.until("web/tags/r2: 1 accepted")
        assert shop.b.run("release", "list", "--json").json["releases"][0]["release"] == (
            "web/tags/r2"
        )
        assert shop.b.run("status", "--json").json["run"] is None
        shop.release("r3", signed=False)
        assert hooks.deliver(b"{} ") == 202
        hooks.until("web/tags/r3: refused: ")
    with closing(sqlite3.connect(shop.a.node.state / "web" / "fleet.sqlite")) as memory:
        ((caller, subject),) = memory.execute(
            "SELECT caller, subject FROM audit WHERE action = 'send' AND decision = 'accepted'"
        ).fetchall()
    assert caller == "choria=a.example.com"
    assert subject == "stage web/tags/r2: 1 accepted; hook web, nodes role=web"
    assert "web/tags/r3: refused: " in shop.a.run("hooks").out
    (row,) = shop.a.run("hooks", "--json").json["hooks"]
    assert (row["action"], row["release"], row["failed"]) == ("stage", "web/tags/r2", True)
    assert "evil" not in (shop.a.node.state / "web" / "hooks.json").read_text()
    metrics = (shop.a.node.state / "metrics-hooks.prom").read_text()
    assert 'localpuppet_hook_failing{hook="web"} 1\n' in metrics


def test_a_pushed_tag_starts_its_rollout_once(nats_fleet: Fleet, tmp_path: Path) -> None:
    action = {"rollout": {"query": "role=web", "canary": 1, "on_failure": "rollback"}}
    shop = Shop(nats_fleet, tmp_path, action)
    nats_fleet.start()
    shop.a.publish_entry("other")
    shop.b.publish_entry("web")
    with serving(shop.a) as hooks:
        shop.release("r2")
        wait_until(lambda: hooks.deliver(b"{}") == 202, str)
        hooks.until("web/tags/r2: rollout 2")
        rollout = hooks.record().result.rpartition(" ")[2]
        assert hooks.deliver(b"{}") == 202
    with serving(shop.a):
        pass
    begun = (shop.a.node.state / "rollouts").glob("2*Z-*")
    assert {path.name.partition(".")[0] for path in begun} == {rollout}

"""`localpuppet web` beside real agents on a real bus, and actions with slow or failed processes."""

import json
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from http.client import HTTPConnection
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from localpuppet.base.errors import LocalpuppetError
from localpuppet.base.formats.names import NodeName, RolloutId
from localpuppet.fleet.app import FleetApp
from localpuppet.fleet.bus.key_value import KeyValue
from localpuppet.node.app import NodeApp
from localpuppet.rollout.commands import RolloutCommand, identify_pause
from localpuppet.rollout.events import RolloutContinued, RolloutPaused
from localpuppet.rollout.journal import Journals
from localpuppet.web.dashboard.rollout_actions import RolloutStart
from localpuppet.web.dashboard.signing_actor import BEGINS, SigningActor
from tests.rigs.buses import SHORT
from tests.rigs.fleet import Fleet
from tests.rigs.member import Member, read_line
from tests.rigs.node import Node
from tests.rigs.waiting import PATIENCE, wait_until
from tests.web.make import a_rollout

ROLLOUT = RolloutId.parse("20261122T110000Z-00aa")
LATER = RolloutId.parse("20261122T110000Z-00bb")
AT = "2026-11-22T11:00:00Z"


class Page:
    """A running `localpuppet web`, and a visitor who has used its link.

    With `--puppetdb`, `api_port` is the port of the API.
    """

    def __init__(self, member: Member, *options: str) -> None:
        self.member = member
        self.process: subprocess.Popen[str] = member.node.start(
            "web", "--listen", "127.0.0.1:0", *options
        )
        # The link comes second, whatever else is served: people and programs read the lines.
        printed = "".join(
            read_line(self.process) for _ in range(3 if "--puppetdb" in options else 2)
        )
        found = re.fullmatch(
            r"dashboard at .*\nhttp://(.*?):(\d+)(/enter\?key=.*)\n"
            r"(?:PuppetDB API at http://127\.0\.0\.1:(\d+)/\n)?",
            printed,
        )
        if found is None:
            self.process.kill()
            raise AssertionError(f"{printed!r}, {member.node.finish(self.process)}")
        # As browsers do: names below `localhost` are not looked up.
        assert found[1].endswith(".localhost")
        self.host, self.port, self.link = f"{found[1]}:{found[2]}", int(found[2]), found[3]
        self.api_port = int(found[4] or 0)
        self.cookie = ""
        self.get(self.link)

    def get(self, path: str) -> str:
        return self.ask("GET", path)

    def do(self, path: str, *, code: int = 200, **form: str) -> str:
        """Confirm an action on the form of the dashboard."""
        shown = re.findall('name="(token|about|node)" value="(.*?)"', self.get(path))
        body = urlencode([*shown, *form.items()])
        return self.ask("POST", path.partition("?")[0], body, code=code)

    def ask(self, method: str, path: str, body: str | None = None, *, code: int = 200) -> str:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        headers = {"Host": self.host, "Cookie": self.cookie, "Origin": f"http://{self.host}"}
        if body is not None:
            headers["Content-Type"] = "application/x-www-form-urlencoded"
        try:
            connection.request(method, path, body=body, headers=headers)
            answer = connection.getresponse()
            text = answer.read().decode()
            assert answer.status == code, text
            for name, morsel in SimpleCookie(answer.headers.get("set-cookie", "")).items():
                self.cookie = f"{name}={morsel.value}"
            return text
        finally:
            connection.close()

    def states(self) -> dict[str, str]:
        nodes = json.loads(self.get("/nodes.json"))["nodes"]
        return {one["node"]: one["state"] for one in nodes}

    def requests(self, action: str) -> dict[str, str]:
        """Return what each node recorded of an action, as the audit view has it."""
        records = json.loads(self.get(f"/audit.json?action={action}"))["audit"]
        return {
            one["node"]: f"{one['caller']}: {one['subject']}: {one['decision']}" for one in records
        }

    def until(self, **states: str) -> None:
        names = {f"{name}.example.com": state for name, state in states.items()}
        wait_until(lambda: self.states() == names, lambda: str(self.states()))

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.member.node.finish(self.process).code


@pytest.fixture
def two(nats_fleet: Fleet) -> Iterator[tuple[Fleet, Member, Member]]:
    nats_fleet.bus.timeout = SHORT
    a, b = nats_fleet.add("a", "b")
    nats_fleet.start()
    yield nats_fleet, a, b


def test_the_fleet_is_remembered_over_a_kill_and_an_outage(
    two: tuple[Fleet, Member, Member],
) -> None:
    fleet, a, b = two
    page = Page(a)
    page.until(a="idle", b="idle")
    b.run("disable", "-m", "migration <b>", code=0)
    page.until(a="idle", b="on hold")
    assert "migration &lt;b&gt;" in page.get("/")
    file = a.node.state / "web" / "fleet.sqlite"
    row = b'"reason": "migration'  # the audit record of the hold has the word, too
    wait_until(lambda: row in file.with_name(f"{file.name}-wal").read_bytes(), str)
    assert file.stat().st_mode & 0o777 == 0o600
    # Another user of this machine reaches the port, and nothing else.
    with socket.create_connection(("127.0.0.1", page.port)) as other:
        other.sendall(f"GET /nodes HTTP/1.1\r\nHost: {page.host}\r\n\r\n".encode())
        assert other.recv(12) == b"HTTP/1.1 403"
    assert page.end(signal.SIGKILL) == -signal.SIGKILL
    fleet.bus.server.kill()
    page = Page(a)
    assert page.states() == {a.name: "idle", b.name: "on hold"}
    away = "Last updated <time.*the bus is unreachable"
    wait_until(lambda: re.search(away, page.get("/")), lambda: page.get("/"))
    fleet.bus.server.start()
    wait_until(lambda: "the bus is unreachable" not in page.get("/"), str)
    assert page.end(signal.SIGINT) == 0
    # The agents have not noticed.
    wait_until(lambda: a.run("nodes").code == 0, lambda: a.log)


def test_without_an_agent_here_the_dashboard_follows_the_bus_itself(nats_fleet: Fleet) -> None:
    a, b = nats_fleet.add("a", "b")
    b.start()
    nats_fleet.present(b)
    page = Page(a)
    page.until(b="idle")
    view = a.node.state / "inventory" / "view.sqlite"
    wait_until(lambda: view.exists(), str)
    page.process.send_signal(signal.SIGTERM)
    done = a.node.finish(page.process)
    assert (done.code, done.err) == (0, "")  # nothing is wrong


def test_actions_are_signed_and_the_policies_of_the_nodes_decide(nats_fleet: Fleet) -> None:
    a, b, c, d = nats_fleet.add("a", "b", "c", "d")
    rules = "".join(f"allow\t*\t{action}\t*\t*\n" for action in ("disable", "trigger"))
    b.node.write("policies/puppet.policy", f"policy default deny\n{rules}")
    d.node.write("policies/puppet.policy", "policy default deny\n")
    nats_fleet.start()
    page = Page(a, "--actions")
    page.until(a="idle", b="idle", c="idle", d="idle")
    c.kill()
    some = urlencode([("node", one.name) for one in (b, c, d)])
    came = page.do(f"/nodes/do/hold?{some}", message="disk is full", length="1h")
    verdicts = dict(
        re.findall(r'href="/nodes/([^"]+)">[^<]+</a></th><td[^>]*><span[^>]*>([^<]+)', came)
    )
    assert {name: word.strip() for name, word in verdicts.items()} == {
        b.name: "accepted",
        c.name: "no answer",
        d.name: "refused",
    }
    assert f'name="node" value="{b.name}"><button>End these holds' in came
    (hold,) = b.run("status", "--json").json["holds"]
    assert (hold["reason"], hold["owner"]) == ("disk is full", f"choria={a.name}")
    recorded = {
        one.name: f"choria={a.name}: disk is full, for 1h: {decision}"
        for one, decision in ((b, "accepted"), (d, "refused"))
    }
    wait_until(lambda: page.requests("disable") == recorded, lambda: page.get("/audit.json"))
    refused = page.do(f"/nodes/do/noop?node={b.name}", code=409)
    assert "The action failed" in refused
    assert "policy" in refused
    assert "1 sent" in page.do(f"/nodes/do/trigger?node={b.name}")
    assert "does not trigger itself" in page.do(f"/nodes/do/trigger?node={a.name}", code=409)
    began = a_rollout(id=ROLLOUT, caller="choria=x", title="shop")
    journal = Journals(a.node.state / "rollouts").begin(began, at=AT)
    page.do(f"/rollouts/{ROLLOUT}/do/stop")
    assert [(word, who) for _, word, who, _ in journal.commands_after(0)] == [
        (RolloutCommand.STOP, f"choria={a.name}")
    ]
    assert "is not paused" in page.do(f"/rollouts/{ROLLOUT}/do/continue", code=409)
    journal.close()
    assert "no process runs the rollout" in page.do(f"/rollouts/{ROLLOUT}/do/stop", code=409)
    assert "is a rollout of choria=x" in page.do(f"/rollouts/{ROLLOUT}/do/resume", code=409)
    own = RolloutId.parse("20261122T110001Z-00aa")
    began = replace(began, id=own, caller=f"choria={a.name}")
    Journals(a.node.state / "rollouts").begin(began, at="2026-11-22T11:00:01Z").close()
    page.do(f"/rollouts/{own}/do/resume", code=303)
    ended = f"/rollouts/{own}.json"
    wait_until(lambda: json.loads(page.get(ended))["state"] == "done", lambda: page.get(ended))
    page.process.send_signal(signal.SIGTERM)
    done = a.node.finish(page.process)
    line = "hold (for 1h: disk is full): 1 refused, 1 no answer, 1 accepted"
    assert f"choria={a.name}: 3 nodes ({b.name}, {c.name}, {d.name}): {line}" in done.err


async def no_bus() -> KeyValue:
    raise AssertionError("a rollout is resumed by another process")


def acting(directory: Path, script: str, **more: Any) -> SigningActor:
    fleet = FleetApp(NodeApp(str(Node(directory).root)))
    journals = Journals(directory / "rollouts")
    return SigningActor(fleet, no_bus, journals, words=["/bin/sh", "-c", script], **more)


async def resumed(directory: Path, script: str, *, begins: float = BEGINS) -> str:
    """Have a rollout resumed; return why it was not."""
    actor = acting(directory, script, begins=begins)
    began = a_rollout(id=ROLLOUT, caller=actor.name)
    Journals(directory / "rollouts").begin(began, at=AT).close()
    with pytest.raises(LocalpuppetError) as refused:
        await actor.resume(ROLLOUT)
    return str(refused.value)


@pytest.mark.puppet
async def test_a_slow_process_is_reported_as_slow_and_not_as_failed(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    waits = f"while ! test -e {gate}; do sleep 0.05; done; echo error >&2"
    try:
        said = await resumed(tmp_path, waits, begins=0.1)
        assert "has not continued the rollout within 0 s" in said
    finally:
        gate.touch()


@pytest.mark.puppet
async def test_a_process_that_ends_at_once_is_reported_with_its_error(tmp_path: Path) -> None:
    fails = "echo localpuppet: error: no bus here >&2; exit 3"
    assert (await resumed(tmp_path, fails)).startswith("no bus here")


@pytest.mark.puppet
async def test_continue_is_refused_if_the_rollout_paused_again(tmp_path: Path) -> None:
    actor, paused = acting(tmp_path, "false"), RolloutPaused(reason="web01 failed")
    began = a_rollout(id=ROLLOUT, caller=actor.name)
    journal = Journals(tmp_path / "rollouts").begin(began, at=AT)
    journal.append(paused, at=AT)
    confirmed = identify_pause(journal.state())
    journal.append(RolloutContinued(caller="choria=bob"), paused, at=AT)
    with pytest.raises(LocalpuppetError, match="paused again since then"):
        await actor.say(ROLLOUT, RolloutCommand.CONTINUE, confirmed)
    assert journal.commands_after(0) == []
    await actor.say(ROLLOUT, RolloutCommand.CONTINUE, identify_pause(journal.state()))
    assert [one[1] for one in journal.commands_after(0)] == [RolloutCommand.CONTINUE]
    journal.close()


@pytest.mark.puppet
async def test_a_plan_is_that_of_the_command(tmp_path: Path) -> None:
    groups = '{"groups": [{"runs": [{"node": "a"}]}, {"runs": [{"node": "b"}, {"node": "c"}]}]}'
    asked = tmp_path / "asked"
    actor = acting(tmp_path, f"echo \"$@\" > {asked}; echo '{groups}'")
    assert await actor.plan({"role": "web; id"}) == [["a"], ["b", "c"]]
    assert asked.read_text().endswith("rollout plan --json --role=web; id\n")
    with pytest.raises(LocalpuppetError, match="no node has the role"):
        await acting(tmp_path, "echo 'no node has the role' >&2; exit 2").plan({"role": "x"})


@pytest.mark.puppet
async def test_a_started_rollout_is_named_and_a_refused_one_has_its_reason(tmp_path: Path) -> None:
    """Another rollout that begins at the same time is not taken for the started one."""
    start = RolloutStart.read({"canary": "1"}, [NodeName.parse("a")])
    script = f"mkdir rollouts; mv begun/{LATER}.sqlite begun/{ROLLOUT}.sqlite rollouts/"
    actor = acting(tmp_path, f"cd {tmp_path}; {script}; echo done >&2")
    others = [("choria=bob", "a", LATER), (actor.name, "a", ROLLOUT)]
    for caller, node, rollout in others:
        began = a_rollout(
            id=rollout, caller=caller, groups=((NodeName(node),),), options=start.options
        )
        Journals(tmp_path / "begun").begin(began, at=AT).close()
    assert await actor.start(start) == ROLLOUT
    with pytest.raises(LocalpuppetError, match="no bus here"):
        await acting(tmp_path, "echo localpuppet: error: no bus here >&2; exit 69").start(start)

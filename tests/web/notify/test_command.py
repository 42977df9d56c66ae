"""`localpuppet notify test`, and settings of channels that are refused."""

import json

import pytest

from localpuppet.base.machine.flock import Flock
from localpuppet.node.releases.release_records import StagedRecords
from tests.rigs.node import Node
from tests.rigs.waiting import wait_until
from tests.web.make import staged
from tests.web.notify.receivers import Receiver, secret_file

SOURCES = "sources: {web: {git: 'https://git.example.com/web.git'}}\n"
CHAT = "notify:\n  channels:\n    chat: {type: slack, url_file: chat-url, query: role=db}\n"


def test_a_test_message_reaches_its_channel(node: Node) -> None:
    (node.root / "localpuppet.yaml").write_text(CHAT)
    with Receiver() as receiver:
        secret_file(node.root, "chat-url", f"{receiver.url}/SECRET")
        assert "took a test message" in node.run("notify", "test", "chat").out
        assert "this is a test message" in receiver.received[0].json["text"]
    done = node.run("notify", "test", "chat", code=69)
    assert "SECRET" not in done.out + done.err
    listed = json.loads(node.run("notify", "test", "--list", "--json").out)
    assert [(row["query"], row["waiting"]) for row in listed["channels"]] == [("role=db", 0)]
    assert "slack" in node.run("notify", "test", "--list").out
    node.run("notify", "test", "chta", code=2)


@pytest.mark.parametrize(
    ("channel", "problem"),
    [
        ("{type: slack}", "needs url_file"),
        ("{type: slack, url_file: a, secret_file: b}", "has no secret_file"),
        ("{type: mail, server: 'a:25', from: 'a@b', to: ['x@y\\nBcc: e@f']}", "mail address"),
        ("{type: mail, server: mail.example.com, from: 'a@b', to: ['x@y']}", "HOST:PORT"),
        ("{type: mail, server: 'a:99999', from: 'a@b', to: ['x@y']}", "HOST:PORT"),
        ("{type: mail, server: 'a:0', from: 'a@b', to: ['x@y']}", "HOST:PORT"),
        ("{type: mail, server: 'a..b:25', from: 'a@b', to: ['x@y']}", "HOST:PORT"),
        ("{type: mail, server: 'a:25', user: jürgen, from: 'a@b', to: ['x@y']}", "ASCII"),
        ("{type: pager, url_file: a}", "type"),
        ("{type: slack, url: 'https://hooks.example.com/1'}", "url"),
        ("{type: heartbeat, url_file: a, kinds: [late]}", "has no kinds"),
        ("{type: github, source: web, token_file: t}", "needs repository"),
        ("{type: gitea, source: web, repository: a/b, token_file: t}", "needs api_url"),
        ("{type: github, source: wbe, repository: a/b, token_file: t}", "'wbe' is not a source"),
        ("{type: github, source: web, repository: a/../b, token_file: t}", "repository"),
        ("{type: github, source: web, repository: a/b, token_file: t, kinds: [late]}", "has no"),
    ],
)
def test_a_channel_that_cannot_work_is_refused(node: Node, channel: str, problem: str) -> None:
    text = f"{SOURCES}notify:\n  channels:\n    one: {channel}\n"
    (node.root / "localpuppet.yaml").write_text(text)
    done = node.run("notify", "test", "--list", code=2)
    assert problem in done.err


def test_a_second_process_with_the_same_state_is_refused(node: Node) -> None:
    (node.root / "localpuppet.yaml").write_text(CHAT)
    with Flock.need(node.state / "web" / "notify.lock", ""):
        done = node.run("web", "--notify", "--no-dashboard")
    assert done.code == 75
    assert "another process serves with --notify (end it, or omit --notify)" in done.err


def test_without_a_dashboard_a_signal_ends_the_process_in_order(node: Node) -> None:
    beats = CHAT.replace("chat: {type: slack", "alive: {type: heartbeat").replace(
        ", query: role=db", ""
    )
    (node.root / "localpuppet.yaml").write_text(beats)
    with Receiver() as receiver:
        secret_file(node.root, "chat-url", receiver.url)
        process = node.start("web", "--notify", "--no-dashboard")
        wait_until(lambda: bool(receiver.received), str)
        process.terminate()
        node.finish(process, code=0)


def test_a_test_status_goes_to_the_newest_verified_release_only(node: Node) -> None:
    signed = SOURCES.replace("web.git'", "web.git', require_signed: true, signers: signers")
    with Receiver(lambda _: (201, {})) as forge:
        settings = f"""notify:
  channels:
    ci:
      type: gitea
      source: web
      repository: ops/web
      api_url: {forge.url}
      token_file: token
"""
        secret_file(node.root, "token", "TOKEN")
        (node.root / "signers").write_text("alice ssh-ed25519 AAAA\n")
        (node.root / "localpuppet.yaml").write_text(SOURCES + settings)
        none = node.run("notify", "test", "ci", code=69)
        assert "no verified release of web is staged" in none.err
        for tag in ("r9", "r10"):
            StagedRecords(node.state).write(staged(f"web/tags/{tag}", "d"))
        done = node.run("notify", "test", "ci")
        (node.root / "localpuppet.yaml").write_text(signed + settings)
        node.run("notify", "test", "ci", code=69)  # no tag is verified
    assert "a test status localpuppet/fleet/test for web/tags/r10, commit bbbb" in done.out
    (one,) = forge.received
    assert one.path == f"/repos/ops/web/statuses/{'b' * 40}"
    assert one.json["context"] == "localpuppet/fleet/test"

"""`localpuppet notify test`, and settings of channels that are refused."""

import json

import pytest

from tests.rigs.node import Node
from tests.web.notify.receivers import Receiver, secret_file

CHAT = "notify:\n  channels:\n    chat: {type: slack, url_file: chat-url, query: role=db}\n"


def test_a_test_message_reaches_its_channel(node: Node) -> None:
    (node.root / "localpuppet.yaml").write_text(CHAT)
    with Receiver() as receiver:
        secret_file(node.root, "chat-url", f"{receiver.url}/SECRET")
        assert "took a test message" in node.run("notify", "test", "chat").out
        assert "this is a test message" in receiver.received[0].json["text"]
    done = node.run("notify", "test", "chat")
    assert done.code == 69
    assert "SECRET" not in done.out + done.err
    listed = json.loads(node.run("notify", "test", "--list", "--json").out)
    assert [(row["channel"], row["query"]) for row in listed["channels"]] == [("chat", "role=db")]
    assert "slack" in node.run("notify", "test", "--list").out
    assert node.run("notify", "test", "chta").code == 2


@pytest.mark.parametrize(
    ("channel", "problem"),
    [
        ("{type: slack}", "needs url_file"),
        ("{type: slack, url_file: a, secret_file: b}", "has no secret_file"),
        ("{type: mail, server: 'a:25', from: 'a@b', to: ['x@y\\nBcc: e@f']}", "mail address"),
        ("{type: mail, server: mail.example.com, from: 'a@b', to: ['x@y']}", "HOST:PORT"),
        ("{type: pager, url_file: a}", "type"),
        ("{type: slack, url: 'https://hooks.example.com/1'}", "url"),
    ],
)
def test_a_channel_that_cannot_work_is_refused(node: Node, channel: str, problem: str) -> None:
    text = f"notify:\n  channels:\n    one: {channel}\n"
    (node.root / "localpuppet.yaml").write_text(text)
    done = node.run("notify", "test", "--list")
    assert done.code == 2
    assert problem in done.err

"""Inputs over https: real TLS, a real CA, and the answers of servers; `base` tests the client."""

from pathlib import Path

import pytest

from tests.rigs.node import Node
from tests.rigs.pages import Answer, PageHandler, pages


def body(data: bytes) -> Answer:
    return lambda handler: handler.send(200, data)


def missing(handler: PageHandler) -> None:
    handler.send(404)


def trickle(handler: PageHandler) -> None:
    handler.drip(b"HTTP/1.1 200 OK\r\nX-Slow: ")


def test_an_input_is_fetched_and_its_query_stays_secret(node: Node, tmp_path: Path) -> None:
    page = "ok.yaml?token=hunter2"
    with pages(tmp_path) as server:
        server.answers[f"/{page}"] = body(b"app: foo/trunk\nclasses: [foo]\n")
        stranger = node.run("check", f"{server.url}/{page}", code=69)
        assert "certificate verify failed" in stranger.err
        node.settings(https_ca=str(server.ca))
        done = node.run("check", f"{server.url}/{page}")
    assert done.code == 0, done.err
    assert "hunter2" not in done.out + done.err
    assert f"{server.url}/ok.yaml" in done.out


@pytest.mark.parametrize(
    ("answer", "timeout", "code", "message"),
    [
        (missing, 60, 69, "answered 404"),
        (trickle, 2, 69, "timed out"),
        (body(b"# " + b"x" * 2_000_000), 60, 2, "too large"),
        (body(b"app: ["), 60, 2, "line"),
    ],
    ids=["missing", "slow", "large", "broken"],
)
def test_an_error_names_the_page_and_the_failure_of_the_server(
    node: Node, tmp_path: Path, answer: Answer, timeout: int, code: int, message: str
) -> None:
    with pages(tmp_path) as server:
        server.answers["/input.yaml"] = answer
        node.settings(https_ca=str(server.ca), timeouts={"https": timeout})
        done = node.run("check", f"{server.url}/input.yaml")
    assert done.code == code
    assert message in done.err
    assert "input.yaml" in done.err


@pytest.mark.parametrize(
    "url", ["https://", "https:///input.yaml", "https://:443/x", "https://?a=b"]
)
def test_a_url_without_a_host_is_refused(node: Node, url: str) -> None:
    done = node.run("apply", url, code=2)
    assert "has no host" in done.err
    assert "None" not in done.err

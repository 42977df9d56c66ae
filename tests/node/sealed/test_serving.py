"""What one run's Puppet gets of sealed values, and what of them is masked."""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from localpuppet.base.machine.own_program import shared_file
from localpuppet.node.runs.verdict import RunLog
from localpuppet.node.sealed.age import AgeIdentity
from localpuppet.node.sealed.serving import MASKED, MAX_REQUEST, SealedServer, ValueMask
from localpuppet.node.sealed.tree import SealedOpener, SealedTree
from tests.rigs.sealed import Sealing


class Asking:
    """Puppet's end of the socket of a server."""

    def __init__(self, server: SealedServer) -> None:
        self.server = server
        self._socket = socket.socket(fileno=os.dup(server.descriptor))
        server.start()
        self._lines = self._socket.makefile("rb")

    def ask(self, request: bytes) -> dict[str, Any]:
        self._socket.sendall(request)
        answer: dict[str, Any] = json.loads(self._lines.readline())
        return answer

    def close(self) -> None:
        assert self.server.end(Path("/nonexistent")) == []
        with suppress(ConnectionResetError):
            assert self._lines.readline() == b"", "the server has closed its end"
        self._lines.close()
        self._socket.close()


@pytest.fixture
def sealing(tmp_path: Path) -> Sealing:
    return Sealing(tmp_path, AgeIdentity.generate())


@pytest.fixture
def asking(sealing: Sealing) -> Iterator[Asking]:
    asked = Asking(
        SealedServer(lambda: SealedOpener(SealedTree.on_disk(sealing.directory), [sealing.key]))
    )
    yield asked
    asked.close()


def test_puppet_gets_one_value_a_request_with_its_type(sealing: Sealing, asking: Asking) -> None:
    sealing.set("common/a", "ä secret\n")
    sealing.set("files/b", b"\xff\x00", type="file")
    sealing.set("common/c", '{"d": [1, "nested secret"]}', type="data")
    assert asking.ask(b'["common/a"]\n') == {"type": "string", "text": "ä secret\n"}
    assert asking.ask(b'["files/b"]\n') == {"type": "file", "base64": "/wA="}
    assert asking.ask(b'["common/c"]\n')["type"] == "data"
    hidden = asking.server.mask.hide(b"1 nested secret, \xc3\xa4 secret and d")
    assert hidden == b"1 [sealed common/c], [sealed common/a] and d"


def test_after_a_refused_request_the_next_is_answered(sealing: Sealing, asking: Asking) -> None:
    sealing.set("common/a", "the secret")
    sealing.group("role=web", member=False)
    sealing.set("common/w", "of others", group="role=web")
    cases = {
        b"\n": "is not JSON",
        b"{}\n": "names no value",
        b'["../../etc/passwd"]\n': "is not LEVEL/KEY",
        b'["common/none"]\n': "is not in the release",
        b'["common/w"]\n': "sealed for role=web, not for this node",
    }
    for request, reason in cases.items():
        assert reason in asking.ask(request)["error"]
        assert asking.ask(b'["common/a"]\n')["text"] == "the secret"
    with pytest.raises((json.JSONDecodeError, ConnectionResetError)):  # the server hangs up
        asking.ask(b'["' + b"a/" * MAX_REQUEST + b'"]\n')


_TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=40)


@given(_TEXTS, _TEXTS, _TEXTS)
def test_no_line_of_an_opened_value_is_left(before: str, secret: str, after: str) -> None:
    mask = ValueMask()
    mask.add("common/k", {"key": [secret]})
    lines = [line for line in (secret, *map(str.strip, secret.split("\n"))) if len(line) >= MASKED]
    for text in (before + secret + after, json.dumps([before, secret], ensure_ascii=False)):
        hidden = mask.hide(text.encode()).decode()
        assert not [line for line in lines if line in hidden and line not in "[sealed common/k]"]
        assert lines or hidden == text


def test_files_of_a_record_lose_what_puppet_left_in_them(tmp_path: Path) -> None:
    mask = ValueMask()
    (tmp_path / "public").mkdir()
    left = tmp_path / "public" / "report.json"
    left.write_text('["a \\"secret\\" text"]')
    (tmp_path / "log").write_text("nothing")
    assert mask.hide_in(tmp_path) == []
    mask.add("common/k", 'a "secret" text')
    assert mask.hide_in(tmp_path) == [left]
    assert left.read_text() == '["[sealed common/k]"]'


def test_a_masked_record_stays_json_and_keeps_what_localpuppet_wrote(tmp_path: Path) -> None:
    mask = ValueMask()
    mask.add("common/k", {"size": 10737418240, "environment": "production"})
    report, request = tmp_path / "report.json", tmp_path / "request.json"
    for file in (report, request):
        file.write_text('{"bytes": 10737418240, "text": "10737418240 in production"}')
    assert mask.hide_in(tmp_path) == [report]
    hidden = "[sealed common/k]"
    assert json.loads(report.read_text()) == {"bytes": 10737418240, "text": f"{hidden} in {hidden}"}
    assert "in production" in request.read_text()


@pytest.mark.parametrize("before", [0, 65530, 65536, 131060, 131072])
@pytest.mark.parametrize("size", [4099, 65536])
def test_a_value_in_a_line_without_an_end_is_masked(tmp_path: Path, before: int, size: int) -> None:
    mask, shown = ValueMask(), list[str]()
    mask.add("common/k", "a secret of one")
    log = RunLog(tmp_path / "log", hide=mask.hide)
    data = b"x" * before + b"a secret of one" + b"y" * 200000
    for start in range(0, len(data), size):
        log.take(data[start : start + size], shown.append)
    log.take(b"", shown.append, end=True)
    log.close()
    assert "".join(shown) == "x" * before + "[sealed common/k]" + "y" * 200000
    assert (tmp_path / "log").read_text().replace("\n", "") == "".join(shown)


def test_ruby_masks_texts_of_the_same_length() -> None:
    module = shared_file("modules/localpuppet") / "localpuppet/lib/puppet_x/localpuppet"
    assert f"\n      MASKED = {MASKED}\n" in (module / "sealed.rb").read_text()

"""Hostile deliveries over real connections: they change nothing, and each has its answer."""

import asyncio
import hashlib
import hmac
import json
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from localpuppet.base.formats.names import SignerName
from localpuppet.base.formats.webhook_signature import parse_webhook_secret, sign_webhook
from localpuppet.base.machine.anchors import server_tls_context
from localpuppet.base.machine.process_table import SystemClock
from localpuppet.fleet.agent.service_log import MOST, ServiceLog
from localpuppet.web.access.http_limits import MAX_DELIVERY
from localpuppet.web.access.serving import ConnectionTable, ListenAddress, Tls, bound, serve
from localpuppet.web.hooks import receiver as receiver_module
from localpuppet.web.hooks.hook_settings import HookSettings, HookType
from localpuppet.web.hooks.receiver import HookReceiver
from tests.doubles.certificates import Ca, pem, write
from tests.doubles.ports import FakeClock, FakeLog

SECRET = "0123456789abcdef"
KEY = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
WRONG = b"the name or the signature is wrong\n"


def hooks_in(directory: Path) -> dict[str, HookSettings]:
    write(directory / "github", SECRET.encode(), mode=0o600)
    write(directory / "own", KEY.encode(), mode=0o600)
    return {
        name: HookSettings(
            type=kind,
            secret_file=directory / name,
            source="shop",
            caller=SignerName("alice"),
            stage="role=shop",
        )
        for name, kind in (("github", HookType.GITHUB), ("own", HookType.LOCALPUPPET))
    }


class Serving:
    """A receiver that is served, and what it has passed on."""

    def __init__(self, directory: Path, *, patience: float = 60.0) -> None:
        self.delivered: list[str] = []
        self.log = FakeLog()
        self.receiver = HookReceiver(
            hooks_in(directory), self.delivered.append, SystemClock(), self.log, patience
        )
        self.port = 0

    @asynccontextmanager
    async def served(self, tls: Tls | None = None) -> AsyncIterator[None]:
        leave = asyncio.Event()
        with bound(ListenAddress(address="127.0.0.1", port=0)) as sockets:
            self.port = sockets[0].getsockname()[1]
            app = self.receiver.application()
            serving = asyncio.create_task(serve(app, sockets, leave, tls=tls))
            try:
                yield
            finally:
                leave.set()
                await serving

    async def send(self, data: bytes, context: ssl.SSLContext | None = None) -> tuple[int, bytes]:
        """Send bytes on a connection of their own; return code and body of the answer."""
        name = "fleet.example.com" if context else None
        reader, writer = await asyncio.open_connection(
            "127.0.0.1", self.port, ssl=context, server_hostname=name
        )
        try:
            writer.write(data)
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
            return int(head.split()[1]), await reader.readexactly(length)
        finally:
            writer.close()


def request(path: str, body: bytes, *headers: str, method: str = "POST") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: anything", *headers]
    if not any(line.startswith(("Content-Length", "Transfer")) for line in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def github(body: bytes, secret: str = SECRET) -> str:
    return (
        f"X-Hub-Signature-256: sha256={hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()}"
    )


def own(body: bytes, identifier: str) -> tuple[str, ...]:
    at = int(datetime.now(UTC).timestamp())
    signature = sign_webhook(parse_webhook_secret(KEY, where=""), identifier, at, body)
    return (
        f"Webhook-Id: {identifier}",
        f"Webhook-Timestamp: {at}",
        f"Webhook-Signature: {signature}",
    )


LARGE = b"x" * (MAX_DELIVERY + 1)
CHUNKED = b"%x\r\n" % len(LARGE) + LARGE + b"\r\n0\r\n\r\n"
HOSTILE: dict[str, tuple[int, bytes]] = {
    "forged": (401, request("/hooks/github", b"{}", github(b"{}", "another secret!!"))),
    "unsigned": (401, request("/hooks/github", b"{}")),
    "unknown name": (401, request("/hooks/unknown", b"{}", github(b"{}"))),
    "not ASCII": (401, request("/hooks/github", b"{}", "X-Hub-Signature-256: sha256=\xe9")),
    "large": (413, request("/hooks/github", LARGE, github(LARGE))),
    "large, in chunks": (
        413,
        request("/hooks/github", CHUNKED, github(LARGE), "Transfer-Encoding: chunked"),
    ),
    "announced as large": (413, request("/hooks/github", b"", f"Content-Length: {10**18}")),
    "two lengths": (
        400,
        request("/hooks/github", b"", "Content-Length: 2", "Transfer-Encoding: chunked"),
    ),
    "GET": (404, request("/hooks/github", b"", method="GET")),
    "PUT": (404, request("/hooks/github", b"{}", github(b"{}"), method="PUT")),
    "another path": (404, request("/", b"{}", github(b"{}"))),
    "a path below": (404, request("/hooks/github/x", b"{}", github(b"{}"))),
    "a climbing path": (404, request("/hooks/%2e%2e/github", b"{}", github(b"{}"))),
    "a long name": (404, request("/hooks/" + "a" * 41, b"{}", github(b"{}"))),
}


@pytest.mark.parametrize("kind", HOSTILE)
async def test_a_hostile_delivery_changes_nothing(kind: str, tmp_path: Path) -> None:
    code, data = HOSTILE[kind]
    serving = Serving(tmp_path)
    async with serving.served():
        answer = await serving.send(data)
        assert answer[0] == code
        if code == 401:
            assert answer[1] == WRONG
        assert serving.delivered == []
        assert (await serving.send(request("/hooks/github", b"{}", github(b"{}"))))[0] == 202
    assert serving.delivered == ["github"]


async def test_a_repeated_body_is_taken_once_until_its_look_has_failed(tmp_path: Path) -> None:
    serving = Serving(tmp_path)
    async with serving.served():
        for body in (b"1", b"2", b"1"):
            sent = request("/hooks/github", body, github(body))
            assert await serving.send(sent) == (202, b"accepted\n")
        assert serving.delivered == ["github"] * 2
        for identifier in ("msg_1", "msg_2", "msg_1"):  # signed again, as a retry is
            headers = own(b"", identifier)
            assert (await serving.send(request("/hooks/own", b"", *headers)))[0] == 202
        assert serving.delivered[2:] == ["own"] * 2
        serving.receiver.forget("github")
        assert (await serving.send(request("/hooks/github", b"1", github(b"1"))))[0] == 202
    assert serving.delivered[4:] == ["github"]


async def test_a_slow_body_is_cut_off(tmp_path: Path) -> None:
    serving = Serving(tmp_path, patience=0.2)
    async with serving.served():
        slow = request("/hooks/github", b"{", github(b"{}"), "Content-Length: 2")
        assert (await serving.send(slow))[0] == 408
    assert serving.delivered == []


async def test_ten_thousand_forged_deliveries_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(receiver_module, "RATE", 0.0)
    serving, codes = Serving(tmp_path), set[int]()
    body = json.dumps({"ref": "refs/tags/r9"}).encode()
    forged = request("/hooks/github", body, github(body, "another secret!!"))
    async with serving.served():

        async def many() -> None:
            reader, writer = await asyncio.open_connection("127.0.0.1", serving.port)
            for _ in range(1000):
                writer.write(forged)
                head = await reader.readuntil(b"\r\n\r\n")
                codes.add(int(head.split()[1]))
                await reader.readuntil(b"\n")
            writer.close()

        await asyncio.gather(*(many() for _ in range(10)))
    assert (codes, serving.delivered) == ({401, 429}, [])
    assert serving.receiver.refused == receiver_module.BURST


async def test_a_secret_that_cannot_be_read_gives_no_hint(tmp_path: Path) -> None:
    serving = Serving(tmp_path)
    genuine = request("/hooks/github", b"{}", github(b"{}"))
    async with serving.served():
        (tmp_path / "github").chmod(0o644)
        assert await serving.send(genuine) == (401, WRONG)
        assert any("others can read" in line for _, line in serving.log.lines)
        (tmp_path / "github").chmod(0o600)
        assert (await serving.send(genuine))[0] == 202
    assert SECRET not in str(serving.log.lines)


async def test_strangers_flood_no_line_of_the_service_while_a_secret_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    serving = Serving(tmp_path)
    serving.receiver.log = log = ServiceLog(FakeClock(), debug=False)
    async with serving.served():
        (tmp_path / "github").unlink()
        for _ in range(MOST + 1):
            assert await serving.send(request("/hooks/unknown", b"")) == (401, WRONG)
    log.warning("hook github: refused")
    assert "hook github: refused" in capsys.readouterr().err


async def test_over_tls_a_git_host_needs_no_certificate(tmp_path: Path) -> None:
    now = datetime.now(UTC)
    day = timedelta(days=1)
    ca = Ca(since=now - day, until=now + 9 * day)
    issued = ca.issue(
        "fleet.example.com", since=now - day, until=now + day, dns=["fleet.example.com"]
    )
    write(tmp_path / "ca.pem", ca.text)
    write(tmp_path / "own.pem", issued.text)
    write(tmp_path / "own.key", pem(issued.key), mode=0o600)
    tls = Tls(
        context=lambda: server_tls_context(None, tmp_path / "own.pem", tmp_path / "own.key"),
        crowd=ConnectionTable(),
        log=FakeLog(),
        names_clients=False,
    )
    serving = Serving(tmp_path)
    client = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    async with serving.served(tls):
        genuine = request("/hooks/github", b"{}", github(b"{}"))
        assert (await serving.send(genuine, client))[0] == 202
    assert serving.delivered == ["github"]

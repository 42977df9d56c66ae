"""Identities for NATS: a seed alone, and a `.creds` file for a server that trusts an operator."""

import base64
import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import nkeys
import pytest

from localpuppet.base.errors import UnavailableError
from localpuppet.fleet.bus.nats_bus import open_nats
from tests.rigs.reaching import servers_at
from tests.rigs.servers import NEW_NATS, OLD_NATS, NatsConfig, NatsServer
from tests.rigs.tls import Authority
from tests.rigs.waiting import PATIENCE

SHORT = 5.0  # the client tries until then
PROGRAMS = pytest.mark.parametrize("program", [OLD_NATS, NEW_NATS], ids=["nats-debian", "nats"])
UNLIMITED = ("subs", "data", "payload", "conn", "leaf", "imports", "exports")
JETSTREAM = ("mem_storage", "disk_storage", "streams", "consumer")


def pair(kind: int) -> nkeys.KeyPair:
    return nkeys.from_seed(nkeys.encode_seed(os.urandom(32), kind))


def name_of(key: nkeys.KeyPair) -> str:
    return bytes(key.public_key).decode().rstrip("=")


def seed_of(key: nkeys.KeyPair) -> str:
    return bytes(key.seed).decode()


def _part(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def token(issuer: nkeys.KeyPair, subject: nkeys.KeyPair, claims: dict[str, object]) -> str:
    """Return a JWT as NATS has them: https://docs.nats.io/reference/reference-protocols."""
    body = {
        "jti": os.urandom(8).hex(),
        "iat": int(time.time()),
        "iss": name_of(issuer),
        "sub": name_of(subject),
        "name": "test",
        "nats": {**claims, "version": 2},
    }
    head = {"typ": "JWT", "alg": "ed25519-nkey"}
    text = f"{_part(json.dumps(head).encode())}.{_part(json.dumps(body).encode())}"
    return f"{text}.{_part(issuer.sign(text.encode()))}"


@contextmanager
def running(directory: Path, program: Path, text: str) -> Iterator[NatsServer]:
    with NatsServer(directory / "nats", program=program, config=NatsConfig(text=text)) as server:
        yield server


async def works(server: NatsServer, file: Path) -> None:
    store = await open_nats(servers_at(server.url, credentials=file), timeout=PATIENCE)
    await store.put("/a/b", b"1")
    assert [entry.value for entry in (await store.list("/a/")).entries] == [b"1"]
    await store.close()


async def refused(server: NatsServer, file: Path) -> None:
    with pytest.raises(UnavailableError, match="credentials"):
        await open_nats(servers_at(server.url, credentials=file), timeout=PATIENCE)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str, str], Path]:
    def written(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text)
        path.chmod(0o600)
        return path

    return written


@PROGRAMS
async def test_a_seed(tmp_path: Path, program: Path, write: Callable[[str, str], Path]) -> None:
    own, other = pair(nkeys.PREFIX_BYTE_USER), pair(nkeys.PREFIX_BYTE_USER)
    users = f"authorization: {{ users: [{{ nkey: {name_of(own)} }}] }}"
    with running(tmp_path, program, users) as server:
        await works(server, write("own.nk", seed_of(own) + "\n"))
        await refused(server, write("other.nk", seed_of(other) + "\n"))


@PROGRAMS
async def test_a_creds_file(
    tmp_path: Path, program: Path, write: Callable[[str, str], Path]
) -> None:
    operator, account = pair(nkeys.PREFIX_BYTE_OPERATOR), pair(nkeys.PREFIX_BYTE_ACCOUNT)
    user, system = pair(nkeys.PREFIX_BYTE_USER), pair(nkeys.PREFIX_BYTE_ACCOUNT)
    limits: dict[str, object] = {**dict.fromkeys((*UNLIMITED, *JETSTREAM), -1), "wildcards": True}
    text = "\n".join(
        (
            f"operator: {token(operator, operator, {'type': 'operator'})}",
            "resolver: MEMORY",
            "resolver_preload: {",
            f"  {name_of(account)}: "
            + token(operator, account, {"type": "account", "limits": limits}),
            f"  {name_of(system)}: {token(operator, system, {'type': 'account'})}",
            "}",
            f"system_account: {name_of(system)}",  # JetStream wants one
        )
    )

    def creds(jwt: str) -> str:
        return (
            f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
            f"-----BEGIN USER NKEY SEED-----\n{seed_of(user)}\n------END USER NKEY SEED------\n"
        )

    rights: dict[str, object] = {"type": "user", "subs": -1, "data": -1, "payload": -1}
    stranger = pair(nkeys.PREFIX_BYTE_ACCOUNT)
    with running(tmp_path, program, text) as server:
        await works(server, write("own.creds", creds(token(account, user, rights))))
        await refused(server, write("other.creds", creds(token(stranger, user, rights))))


@PROGRAMS
async def test_tls_with_a_client_certificate(tmp_path: Path, program: Path) -> None:
    (tmp_path / "other").mkdir()
    authority, other = Authority(tmp_path), Authority(tmp_path / "other")
    known = authority.node("web01.example.com")
    old = authority.node("web02.example.com", at="2020-01-01")
    with NatsServer(
        tmp_path / "nats", program=program, config=NatsConfig(tls=authority.server())
    ) as server:
        own = servers_at(
            server.url, ca=authority.path, certificate=known.certificate, key=known.key
        )
        store = await open_nats(own, timeout=PATIENCE)
        await store.put("/a", b"1")
        await store.close()
        for less in (servers_at(server.url, ca=authority.path), servers_at(server.url)):
            with pytest.raises(UnavailableError):
                await open_nats(less, timeout=1.0)
        for ca, node, reason in (
            (authority, old, "web02.example.com.pem, which expired on 2020-01-31"),
            (other, known, f"the server's certificate is refused: .*trusted: {other.path}"),
        ):
            reach = servers_at(server.url, ca=ca.path, certificate=node.certificate, key=node.key)
            with pytest.raises(UnavailableError, match=reason):
                await open_nats(reach, timeout=SHORT)

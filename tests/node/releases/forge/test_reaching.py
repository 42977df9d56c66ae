"""Access to a forge through a proxy and with a token: neither gets the secret of the other."""

from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from localpuppet.base.errors import UnavailableError
from localpuppet.node.releases.forge.forge_modules import Transfer
from tests.rigs.connect_proxy import ConnectProxy, serve_proxy
from tests.rigs.forge import Forge, klass, make
from tests.rigs.module_forge import ModuleForge, serve
from tests.rigs.node import Node
from tests.rigs.tls import Authority

BEHIND = "https://localhost:1"  # only the proxy reaches it


@pytest.fixture
def modules() -> ModuleForge:
    forge = ModuleForge(token="s3cret")
    forge.publish("acme/ntp", "1.0.0")
    return forge


@pytest.fixture
def url(modules: ModuleForge, tmp_path: Path) -> Iterator[str]:
    with serve(modules, Authority(tmp_path)) as url:
        yield url


def address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return str(parts.hostname), int(parts.port or 0)


def transfer(url: str, tmp_path: Path, proxy: str | None, total: float = 120) -> Transfer:
    ca = tmp_path / "ca.pem"
    return Transfer(url=url, ca=ca, proxy=proxy, token="s3cret", timeout=60, total=total)


def test_modules_are_downloaded_through_the_proxy_with_the_token(
    node: Node, forge: Forge, modules: ModuleForge, url: str, tmp_path: Path
) -> None:
    node.write("token", "s3cret\n", 0o600)
    web = forge.repo("web")
    web.commit({"web/manifests/init.pp": klass("web", "web")})
    web.write({"manifest.yaml": "modules:\n  ntp: {forge: acme/ntp, version: latest}\n"})
    proxy = ConnectProxy(elsewhere=address(url))
    with serve_proxy(proxy) as place:
        reached = {"url": BEHIND, "ca": str(tmp_path / "ca.pem"), "proxy": place}
        node.settings(forge=reached)
        refused = make(node, "lock", str(web.path), code=69)
        assert "the forge answered 401 ('forge: {token_file: FILE}' in" in refused.err
        assert modules.paths("files") == []
        node.settings(forge={**reached, "token_file": str(node.root / "token")})
        locked = make(node, "lock", str(web.path), "--json", code=0)
        assert locked.json["modules"]["ntp"]["version"] == "1.0.0"
    assert set(proxy.places) == {"localhost:1"}
    assert "s3cret" not in str(proxy.heard)


def test_an_error_names_a_proxy_that_requires_a_password(url: str, tmp_path: Path) -> None:
    with (
        serve_proxy(ConnectProxy(password="Basic x", elsewhere=address(url))) as place,
        pytest.raises(
            UnavailableError, match=r"the proxy 127\.0\.0\.1:\d+ answered 407 .*ca, proxy"
        ),
    ):
        transfer(BEHIND, tmp_path, place).document(f"{BEHIND}/v3/modules/acme-ntp")


def test_a_transfer_through_a_proxy_that_answers_byte_by_byte_times_out(tmp_path: Path) -> None:
    Authority(tmp_path)
    with (
        serve_proxy(ConnectProxy(slow=True)) as place,
        pytest.raises(UnavailableError, match=r"timed out after 0\.5 s"),
    ):
        transfer(BEHIND, tmp_path, place, total=0.5).document(f"{BEHIND}/v3/modules/x")

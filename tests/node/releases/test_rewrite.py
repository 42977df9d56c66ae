"""rewrite: localpuppet fetches repositories from another address and records their own."""

from pathlib import Path

import pytest

from tests.rigs.forge import Forge, make
from tests.rigs.node import Node

PUBLIC = "https://git.example.net/"


@pytest.fixture
def mirrored(node: Node, forge: Forge) -> Node:
    node.settings(
        allow_file_urls=True,
        sources={"web": {"git": f"{PUBLIC}web"}},
        rewrite={PUBLIC: f"file://{forge.path}/"},
    )
    forge.repo("ntp").commit({"manifests/init.pp": "class ntp {}\n"}, "v1")
    return node


def test_what_comes_from_the_mirror_keeps_its_url(mirrored: Node, forge: Forge) -> None:
    web = forge.repo("web")
    modules = f"ntp: {{git: {PUBLIC}ntp, tag: v1}}\n  apt: {{git: {PUBLIC}ntp, branch: main}}"
    web.write(
        {"manifest.yaml": f"modules:\n  {modules}\n", "web/manifests/init.pp": "class web {}\n"}
    )
    make(mirrored, "lock", str(web.path), code=0)
    lock = (web.path / "manifest.lock").read_text()
    assert lock.count(f'url: "{PUBLIC}ntp"') == 2
    assert str(forge.path) not in lock
    web.commit({}, "r1")
    mirrored.run("stage", "web/tags/r1", code=0)


def test_a_puppetfile_keeps_its_urls(mirrored: Node, tmp_path: Path) -> None:
    file = tmp_path / "Puppetfile"
    file.write_text(f"mod 'ntp', git: '{PUBLIC}ntp'\n")
    done = make(mirrored, "import", "-o", str(tmp_path / "manifest.yaml"), str(file))
    assert done.code in (0, 1), done.err
    assert f"{PUBLIC}ntp" in (tmp_path / "manifest.yaml").read_text()


@pytest.mark.parametrize(
    ("rewrite", "message"),
    [
        ({"https://a.example/": "https://b.example"}, "both sides must end in"),
        ({"https://a.example/x": "https://b.example/"}, "both sides must end in"),
        ({"https://a.example/": "http://b.example/"}, "not allowed"),
        ({"https://a.example/": "https://u:secret@b.example/"}, "holds credentials"),
        ({"-oProxyCommand=x:": "https://b.example/"}, "not allowed"),
        ({"https://a.example/": "file:///srv/"}, "allow_file_urls"),
    ],
)
def test_an_invalid_rewrite_is_refused(node: Node, rewrite: dict[str, str], message: str) -> None:
    node.settings(rewrite=rewrite)
    done = node.run("check", code=2)
    assert "localpuppet.yaml: rewrite: " in done.err
    assert message in done.err
    assert "secret" not in done.err

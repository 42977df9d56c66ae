"""release import: a Puppetfile and real repositories become a manifest that can be locked."""

from pathlib import Path

import pytest

from tests.rigs.forge import Forge, klass, make
from tests.rigs.node import Node


@pytest.fixture
def shop(node: Node, forge: Forge) -> Node:
    """A node, and repositories: ntp with an annotated tag, apt with a branch past its tag."""
    node.settings(allow_file_urls=True)
    forge.repo("ntp").commit({"manifests/init.pp": klass("ntp", "v1")}, "v1.0.0")
    forge.repo("ntp").git("tag", "light")
    apt = forge.repo("apt")
    apt.commit({"manifests/init.pp": klass("apt", "v2")}, "v2")
    apt.commit({"manifests/init.pp": klass("apt", "later")})
    return node


def puppetfile(node: Node, *modules: str) -> Path:
    text = "forge 'https://forge.example.net'\nmoduledir 'ext'\n\n" + "\n".join(modules) + "\n"
    return node.write("control/Puppetfile", text)


def module(forge: Forge, name: str, *options: str) -> str:
    return ",\n  ".join([f"mod 'acme/{name}'", f":git => '{forge.repo(name).url}'", *options])


def test_tags_become_a_manifest_that_locks(shop: Node, forge: Forge) -> None:
    file = puppetfile(
        shop,
        module(forge, "ntp", ":ref => 'v1.0.0'"),
        module(forge, "apt", ":tag => 'v2'"),
    )
    printed = make(shop, "import", str(file))
    assert printed.code == 0, printed.err
    output = file.parent / "manifest.yaml"
    assert make(shop, "import", str(file), "-o", str(output)).code == 0
    assert output.read_text() == printed.out
    locked = make(shop, "lock", str(file.parent), "--json")
    assert locked.code == 0, locked.err
    pins = locked.json["modules"]
    assert {name: pin["tag"] for name, pin in pins.items()} == {"ntp": "v1.0.0", "apt": "v2"}


def test_what_is_no_tag_is_reported_with_the_tags_of_its_commit(shop: Node, forge: Forge) -> None:
    commit = forge.repo("ntp").git("rev-parse", "HEAD")
    file = puppetfile(
        shop,
        module(forge, "ntp", ":branch => 'main'"),
        module(forge, "apt", ":branch => 'main'"),
    )
    output = file.parent / "manifest.yaml"
    refused = make(shop, "import", str(file), "-o", str(output))
    assert refused.code == 2
    assert not output.exists()
    ntp, apt = refused.out.splitlines()[1:]
    assert ntp.split(maxsplit=5) == ["4", "ntp", "branch", "main", commit[:12], "v1.0.0, light"]
    assert apt.split()[-1] == "none"
    assert refused.err == (
        f"localpuppet: error: {file}: 2 of 2 modules name no tag"
        " (tag what you use and name the tag; --use-tags takes those that exist)\n"
    )
    half = make(shop, "import", str(file), "--use-tags", "--json")
    assert half.code == 2
    assert list(half.json["modules"]) == ["ntp"]
    assert [(item["module"], item["taken"]) for item in half.json["findings"]] == [
        ("ntp", "v1.0.0"),
        ("apt", None),
    ]


def test_use_tags_takes_them_and_says_so(shop: Node, forge: Forge) -> None:
    commit = forge.repo("ntp").git("rev-parse", "HEAD")
    file = puppetfile(shop, module(forge, "ntp", f":commit => '{commit}'"))
    done = make(shop, "import", str(file), "--use-tags")
    assert done.code == 0, done.err
    assert f"  # line 4 of Puppetfile said commit {commit}, which was {commit}" in done.out
    assert '    tag: "v1.0.0"' in done.out


def test_the_modulepath_that_is_there_is_kept(shop: Node, forge: Forge) -> None:
    old = f"  old: {{git: '{forge.repo('apt').url}', tag: v2}}"
    shop.write("control/manifest.yaml", f"modulepath: [dist/tags/r7]\nmodules:\n{old}\n")
    file = puppetfile(shop, module(forge, "ntp", ":tag => 'v1.0.0'"))
    done = make(shop, "import", str(file))
    assert done.code == 0, done.err
    assert done.out.startswith('modulepath:\n  - "dist/tags/r7"\nmodules:\n  ntp:\n')
    assert done.err == "# old was in the manifest and is not in the Puppetfile\n"


def test_ruby_is_refused_in_one_line(shop: Node, forge: Forge) -> None:
    file = puppetfile(shop, "tag = 'v1'", module(forge, "ntp", ":tag => tag"))
    refused = make(shop, "import", str(file))
    assert refused.code == 2
    assert refused.err.startswith(f"localpuppet: error: {file}: line 4: 'tag' is more than")
    assert refused.err.count("\n") == 1


def test_a_repository_that_cannot_be_asked(shop: Node, forge: Forge) -> None:
    file = puppetfile(shop, f"mod 'x', git: 'file://{forge.path}/gone'")
    refused = make(shop, "import", str(file))
    assert refused.code == 69
    assert "gone: cannot be asked" in refused.err


def test_no_puppetfile_and_no_text(shop: Node) -> None:
    assert "does it exist?" in make(shop, "import", str(shop.root / "Puppetfile")).err
    (shop.root / "Puppetfile").write_bytes(b"\xff")
    assert "is not UTF-8" in make(shop, "import", str(shop.root / "Puppetfile")).err

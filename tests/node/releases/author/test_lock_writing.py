"""lock: one error names all unreachable repositories; a moved module has a link to its changes."""

import pytest

from localpuppet.node.releases.author.lock_writing import moves
from localpuppet.node.releases.forge.pins import ForgePin
from localpuppet.node.releases.git.git_modules import CommitPin
from localpuppet.node.releases.git.git_names import GitUrl
from localpuppet.node.releases.manifest import Lock
from localpuppet.node.releases.modules import ModulePin
from tests.node.make import forge_pin
from tests.rigs.forge import Forge, klass, make
from tests.rigs.node import Node


def test_one_error_names_every_unreachable_repository(site: Node, forge: Forge) -> None:
    forge.repo("good").commit({"manifests/init.pp": klass("good", "good")}, "v1")
    modules = {
        "good": "tag: v1",
        "one": "tag: v1",
        "two": "tag: v2",
        "three": "branch: main",
        "four": "branch: main",
        "five": f"commit: {'e' * 40}",
        "six": f"commit: {'f' * 40}",
    }
    lines = [
        f"  {name}: {{git: 'file://{forge.path / name}', {ref}}}" for name, ref in modules.items()
    ]
    web = forge.repo("web")
    (web.path / "manifest.lock").unlink()
    web.write({"manifest.yaml": "\n".join(["modules:", *lines]) + "\n"})
    done = make(site, "lock", str(web.path), code=69)
    assert done.err.count("\n") == 1
    assert done.err.startswith(f"localpuppet: error: {web.path}/manifest.yaml: ")
    named = [name for name in modules if f"file://{forge.path / name}: " in done.err]
    assert named == ["one", "two", "three", "four", "five", "six"]
    assert not (web.path / "manifest.lock").exists()


TREE = "0" * 63 + "1"


def at(url: str, digit: str) -> CommitPin:
    parsed = GitUrl.parse(url, where="")
    return CommitPin(url=parsed, branch="main", commit=digit * 40, tree_sha256=TREE)


def changes(old: ModulePin | None, new: ModulePin | None) -> str:
    """Return the link in the move from a lock with the one pin to a lock with the other."""
    locks = [Lock(modules={"ntp": pin} if pin else {}, sources={}) for pin in (old, new)]
    (move,) = moves(locks[0], locks[1])
    return move.changes


def version(text: str) -> ForgePin:
    return forge_pin("puppetlabs/stdlib", text, archive_sha256=TREE, tree_sha256=TREE)


@pytest.mark.parametrize(
    ("url", "page"),
    [
        ("https://github.com/acme/ntp.git", "https://github.com/acme/ntp/compare/"),
        ("https://gitlab.example.com/a/b/ntp", "https://gitlab.example.com/a/b/ntp/-/compare/"),
        ("https://gitea.example.com/acme/ntp.git", "https://gitea.example.com/acme/ntp/compare/"),
        ("https://git.example.com/acme/ntp.git", ""),
        ("git@github.com:acme/ntp.git", ""),
    ],
)
def test_a_known_host_has_a_link_to_the_comparison_of_commits(url: str, page: str) -> None:
    expected = f"{page}aaaaaaaaaaaa...bbbbbbbbbbbb" if page else ""
    assert changes(at(url, "a"), at(url, "b")) == expected


def test_a_module_of_the_forge_has_a_link_to_its_changelog() -> None:
    before = Lock(modules={"stdlib": version("9.0.0")}, sources={})
    after = Lock(modules={"stdlib": version("9.1.0")}, sources={})
    (move,) = moves(before, after)
    assert move.to_dict() == {
        "name": "stdlib",
        "old": "9.0.0",
        "new": "9.1.0",
        "changes": "https://forge.puppet.com/modules/puppetlabs/stdlib/changelog",
    }


def test_a_new_module_or_one_from_another_origin_has_no_link() -> None:
    here = at("https://github.com/acme/ntp.git", "a")
    assert changes(None, here) == ""
    assert changes(here, None) == ""
    assert changes(version("9.0.0"), here) == ""
    assert changes(at("https://github.com/other/ntp.git", "a"), here) == ""

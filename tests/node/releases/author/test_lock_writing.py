"""lock: one error names all unreachable repositories."""

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
    done = make(site, "lock", str(web.path))
    assert done.code == 69
    assert done.err.count("\n") == 1
    assert done.err.startswith(f"localpuppet: error: {web.path}/manifest.yaml: ")
    named = [name for name in modules if f"file://{forge.path / name}: " in done.err]
    assert named == ["one", "two", "three", "four", "five", "six"]
    assert not (web.path / "manifest.lock").exists()

"""The limits of one release: its tree, modules and collections together, from any origin."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localpuppet.base.errors import IntegrityError, InvalidInputError
from localpuppet.node.releases.fetch import ModuleFetcher
from localpuppet.node.releases.forge.forge_modules import (
    AHEAD,
    DirectoryForge,
    Forge,
    ForgeModules,
    Transfer,
)
from localpuppet.node.releases.forge.pins import ForgeModule, ForgePin, Slug
from localpuppet.node.releases.limits import MAX_PINNED, Budget, Limits
from localpuppet.node.releases.manifest import Lock, Manifest
from localpuppet.node.releases.module_metadata import ModuleVersion, Range
from localpuppet.node.releases.store import Store
from tests.node import make
from tests.rigs.module_forge import ModuleForge, serve
from tests.rigs.staged import R1, R2, ReleaseSite
from tests.rigs.tls import Authority

NAMES = ("one", "two")


def let_in(site: ReleaseSite, **limits: int) -> None:
    site.store = Store(site.state, limits=Limits(**limits))


@pytest.fixture
def modules() -> ModuleForge:
    forge = ModuleForge()
    for name in NAMES:
        forge.publish(f"acme/{name}", "1.0.0")
    return forge


def fetcher(site: ReleaseSite, modules: ModuleForge) -> ModuleFetcher:
    modules.write(site.root / "mirror")
    forge = DirectoryForge(site.root / "mirror", scratch=site.state / "forge")
    return ModuleFetcher(source=lambda _kind: ForgeModules(forge), store=site.store)


def pins() -> dict[str, ForgePin]:
    return {f"modules.{name}": make.forge_pin(f"acme/{name}") for name in NAMES}


def test_limits_cover_tree_modules_and_collections_together(web_site: ReleaseSite) -> None:
    """The tree of the release has three files; its module and its collection have one each."""
    let_in(web_site, members=4)
    with pytest.raises(IntegrityError, match="too many members: at most 4"):
        web_site.staging().stage(R1)
    assert (web_site.store.digests(), web_site.names()) == ([], [])
    let_in(web_site, members=5)
    web_site.staging().stage(R1)
    web_site.release(R2)  # whose module and collection are stored already
    let_in(web_site, members=4)
    with pytest.raises(IntegrityError, match="too many members"):
        web_site.staging().stage(R2)
    assert web_site.says(R2) == ""
    let_in(web_site, members=5)
    web_site.staging().stage(R2)


@pytest.mark.parametrize("what", ["unpacked", "members", "file"])
def test_limits_cover_all_archives(web_site: ReleaseSite, modules: ModuleForge, what: str) -> None:
    """Each of the two fits alone. Each has four members, which are headers of files."""
    first, second = sorted(map(len, modules.files.values()))
    limits = {
        "unpacked": Limits(unpacked=400),
        "members": Limits(members=7),
        "file": Limits(file=first + second - 1),
    }[what]
    bring = fetcher(web_site, modules).bring
    with pytest.raises(IntegrityError, match=r"too large|too many members"):
        bring(pins(), file="manifest.lock", budget=Budget(limits))
    assert web_site.store.digests() == []
    for key, pin in pins().items():
        bring({key: pin}, file="manifest.lock", budget=Budget(limits))


def test_limits_cover_the_trees_of_a_package_together(web_site: ReleaseSite) -> None:
    let_in(web_site, unpacked=10)
    staging = web_site.store.staging()
    for name in NAMES:
        (staging / name).mkdir()
        (staging / name / "file").write_bytes(b"x" * 6)
    with pytest.raises(IntegrityError, match="too large: at most 10 bytes"):
        web_site.store.add((name, staging / name) for name in NAMES)
    assert web_site.store.digests() == []
    assert list(web_site.store.add([("one", staging / "one")])) == ["one"]


def test_the_number_of_modules_of_a_release_is_limited() -> None:
    entry = {"forge": "acme/one", "version": "1.0.0"}
    modules: dict[str, Any] = {f"m{number}": entry for number in range(MAX_PINNED + 1)}
    with pytest.raises(InvalidInputError, match="modules: exceed the limit: 1001, at most 1000"):
        Manifest.from_dict({"modules": modules})
    with pytest.raises(InvalidInputError, match="modules: exceed the limit"):
        Lock.from_dict({"version": 1, "modules": modules}, allow_file=False)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[ModuleForge, str]]:
    forge = ModuleForge()
    for number in range(3 * AHEAD):
        forge.publish("acme/one", f"1.0.{number}")
    with serve(forge, Authority(tmp_path)) as url:
        yield forge, url


def test_few_archives_are_read_ahead(server: tuple[ModuleForge, str], tmp_path: Path) -> None:
    modules, url = server
    transfer = Transfer(
        url=url, ca=tmp_path / "ca.pem", proxy=None, token="", timeout=60, total=120
    )
    forge = Forge(transfer=transfer, cache=tmp_path / "cache")
    module = ForgeModule(
        slug=Slug.parse("acme/one", where=""), version=Range.parse("latest", where="")
    )
    versions = [ModuleVersion.parse(f"1.0.{number}", where="") for number in range(3 * AHEAD)]
    wanted = [module.at(version) for version in versions]
    arrivals = forge.archives(wanted)
    next(arrivals)
    arrivals.close()
    assert 1 <= len(modules.paths("/v3/files/")) <= AHEAD
    assert [release for release, _, _ in forge.archives(wanted)] == wanted

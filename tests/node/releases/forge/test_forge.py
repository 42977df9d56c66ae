"""Modules of the Forge: lock, stage and apply them; failures of a forge."""

import hashlib
import io
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from localpuppet.base.errors import IntegrityError
from localpuppet.node.releases.forge.forge_modules import unpack_module
from localpuppet.node.releases.limits import Budget
from tests.node.make import forge_pin
from tests.rigs.forge import Forge, Repo, klass, make
from tests.rigs.module_forge import ModuleForge, archive, serve
from tests.rigs.node import Done, Node
from tests.rigs.tls import Authority

NEEDS = {"name": "puppetlabs/stdlib", "version_requirement": ">= 9.0.0 < 10.0.0"}
STDLIB = "puppetlabs-stdlib-9.4.1.tar.gz"


@pytest.fixture
def modules() -> ModuleForge:
    forge = ModuleForge()
    for version in ("9.0.0", "9.4.0", "9.4.1", "10.0.0"):
        forge.publish("puppetlabs/stdlib", version)
    forge.publish("acme/ntp", "1.0.0", dependencies=[NEEDS])
    return forge


@pytest.fixture
def server(modules: ModuleForge, tmp_path: Path) -> Iterator[str]:
    with serve(modules, Authority(tmp_path)) as url:
        yield url


STDLIB_9 = "stdlib: {forge: puppetlabs/stdlib, version: '>= 9.0.0 < 10.0.0'}"
NTP = "ntp: {forge: acme/ntp, version: latest}"


@dataclass
class Shop:
    """A node with the source `web`, whose releases have modules of the Forge."""

    node: Node
    web: Repo

    def settings(self, place: dict[str, str], **more: object) -> None:
        sources = {"web": {"git": self.web.url}}
        self.node.settings(allow_file_urls=True, sources=sources, forge=place, **more)

    def manifest(self, *lines: str) -> None:
        self.web.write({"manifest.yaml": "modules:\n" + "".join(f"  {x}\n" for x in lines)})

    def make(self, verb: str, *options: str, code: int | None = None) -> Done:
        return make(self.node, verb, str(self.web.path), *options, code=code)

    def lock(self, *options: str) -> dict[str, dict[str, str]]:
        return dict(self.make("lock", "--json", *options, code=0).json["modules"])


@pytest.fixture
def shop(node: Node, forge: Forge) -> Shop:
    web = forge.repo("web")
    web.commit({"web/manifests/init.pp": klass("web", "web")})
    return Shop(node, web)


@pytest.fixture
def served(shop: Shop, server: str, tmp_path: Path) -> Shop:
    shop.settings({"url": server, "ca": str(tmp_path / "ca.pem")})
    return shop


def test_modules_of_the_forge_are_applied(served: Shop, modules: ModuleForge) -> None:
    served.manifest(STDLIB_9, NTP)
    pins = served.lock()
    assert pins["stdlib"]["version"] == "9.4.1"
    assert pins["stdlib"]["archive_sha256"] == hashlib.sha256(modules.files[STDLIB]).hexdigest()
    served.web.commit({}, "r1")
    served.node.write("input.yaml", "app: web/tags/r1\nclasses: [web, ntp, stdlib]\n")
    applied = served.node.run("apply", code=0)
    assert "stdlib 9.4.1" in applied.out
    assert "ntp 1.0.0" in applied.out
    modules.asked.clear()
    served.node.run("stage", code=0)
    assert modules.asked == []


def test_a_locked_module_stays_as_it_is(served: Shop, modules: ModuleForge) -> None:
    served.manifest(STDLIB_9, NTP)
    first = served.lock()
    modules.publish("puppetlabs/stdlib", "9.9.0")
    modules.publish("acme/ntp", "2.0.0")
    assert served.lock() == first
    outdated = served.make("lock", "--outdated", "--json").json["outdated"]
    assert [(item["name"], item["old"], item["new"]) for item in outdated] == [
        ("ntp", "1.0.0", "2.0.0"),
        ("stdlib", "9.4.1", "10.0.0"),
    ]
    moved = served.make("lock", "stdlib", "--update")
    assert moved.out.splitlines()[1].split() == ["stdlib", "9.4.1", "->", "9.9.0"]
    assert served.lock()["ntp"] == first["ntp"]
    assert served.lock("--update")["ntp"]["version"] == "2.0.0"
    served.make("lock", "nope", "--update", code=2)


def test_other_bytes_are_an_alarm(served: Shop, modules: ModuleForge) -> None:
    served.manifest(NTP)
    first = served.lock()
    modules.publish("acme/ntp", "1.0.0", text=" again")
    alarm = served.make("lock", code=3)
    assert "acme/ntp 1.0.0" in alarm.err
    assert "different bytes" in alarm.err
    served.make("check", code=3)
    served.web.commit({}, "r1")
    served.node.run("stage", "web/tags/r1", code=3)
    assert not (served.node.root / "modules/web").exists()
    assert served.lock("--accept-moved")["ntp"] != first["ntp"]


def test_an_interrupted_download_is_resumed(served: Shop, modules: ModuleForge) -> None:
    name = "acme-ntp-1.0.0.tar.gz"
    modules.cut.add(name)
    served.manifest(NTP)
    served.lock()
    asked = [headers for path, headers in modules.asked if path.endswith(name)]
    half = len(modules.files[name]) // 2
    assert [headers.get("Range") for headers in asked] == [None, f"bytes={half}-"]


@pytest.mark.parametrize(
    ("release", "what"),
    [
        (archive("acme/other", "1.0.0", {}), "names 'acme-other' '1.0.0'"),
        (archive("acme/ntp", "1.0.1", {}), "names 'acme-ntp' '1.0.1'"),
        (archive("acme/ntp", "1.0.0", {"../evil": "x"}), "a file's name is not allowed"),
        (archive("acme/ntp", "1.0.0", {"a": "x", "a/b": "y"}), "occurs twice"),
        (b"no archive" * 60, "is not a tar file"),
        (archive("acme/ntp", "1.0.0", {"a": "x" * 5000})[:-40], "is damaged"),
    ],
)
def test_an_invalid_archive_is_refused(
    served: Shop, modules: ModuleForge, release: bytes, what: str
) -> None:
    modules.files["acme-ntp-1.0.0.tar.gz"] = release
    served.manifest(NTP)
    refused = served.make("lock", code=3)
    assert what in refused.err
    assert refused.err.count("\n") == 1
    assert refused.err.endswith(")\n"), "the message has a cure"


def test_other_bytes_than_the_api_says_are_an_alarm(served: Shop, modules: ModuleForge) -> None:
    modules.lies["acme-ntp-1.0.0.tar.gz"] = "a" * 64
    served.manifest(NTP)
    served.make("lock", code=3)


def test_archives_are_a_forge(shop: Shop, modules: ModuleForge, tmp_path: Path) -> None:
    shop.settings({"url": modules.write(tmp_path / "mirror")})
    shop.manifest(STDLIB_9, NTP)
    pins = shop.lock()
    assert pins["stdlib"]["version"] == "9.4.1"
    modules.publish("acme/ntp", "1.0.0", text=" again")
    modules.write(tmp_path / "mirror")
    shop.make("lock", code=3)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("x: {forge: acme/x, version: latest}", "the forge has no module acme/x"),
        ("ntp: {forge: acme/ntp, version: 7.0.0}", "the forge has no release acme/ntp 7.0.0"),
        ("ntp: {forge: acme/ntp, version: '>= 7.0.0'}", "the newest there is 1.0.0"),
        ("clock: {forge: acme/ntp, version: latest}", "name it so: 'ntp: …'"),
        ("ntp: {forge: acme/ntp}", "forge and version go together"),
        ("ntp: {forge: ntp, version: latest}", "is not a module of the Forge"),
        ("ntp: {forge: acme/ntp, version: next}", "is not a version or a range"),
        ("ntp: {git: 'https://x.example/y', tag: v1, branch: b}", "one of tag, commit, branch"),
        ("ntp: {version: latest}", "names neither git nor forge"),
    ],
)
def test_an_unknown_module_is_named(served: Shop, line: str, what: str) -> None:
    served.manifest(line)
    refused = served.make("lock", code=2)
    assert what in refused.err


def test_a_forge_that_does_not_answer_is_unavailable(shop: Shop) -> None:
    shop.settings({"url": "https://127.0.0.1:9"}, timeouts={"https": 5})
    shop.manifest(NTP)
    refused = shop.make("lock", code=69)
    assert "cannot be downloaded" in refused.err


def test_with_tags_only_modules_of_the_forge_are_refused(served: Shop) -> None:
    served.manifest(NTP)
    served.lock()
    served.web.commit({}, "r1")
    text = (served.node.root / "localpuppet.yaml").read_text()
    served.node.write("localpuppet.yaml", text[:-1] + ', "tags_only": true}')
    for refused in (served.make("lock"), served.node.run("stage", "web/tags/r1")):
        assert refused.code == 2
        assert "localpuppet.yaml says tags_only" in refused.err


@pytest.mark.parametrize("url", ["http://forge.example.com", "https://a:b@forge.example.com", "x"])
def test_an_invalid_url_of_a_forge_is_refused(shop: Shop, url: str) -> None:
    shop.settings({"url": url})
    refused = shop.node.run("release", "list", code=2)
    assert "forge.url" in refused.err
    assert "a:b" not in refused.err


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.DIRTYPE])
def test_a_link_or_directory_with_content_hides_no_members(tmp_path: Path, kind: bytes) -> None:
    """Other programs skip the content; a reader that parses it as headers unpacks other code."""
    hidden = tarfile.TarInfo("m-1.0.0/manifests/hidden.pp")
    hidden.size = 5
    content = hidden.tobuf(tarfile.USTAR_FORMAT) + b"evil\n".ljust(512, b"\0")
    link = tarfile.TarInfo("m-1.0.0/link")
    link.type, link.linkname, link.size = kind, "x", len(content)
    metadata = tarfile.TarInfo("m-1.0.0/metadata.json")
    metadata.size = 2
    file = tmp_path / "m.tar"
    file.write_bytes(
        link.tobuf(tarfile.USTAR_FORMAT)
        + content
        + metadata.tobuf(tarfile.USTAR_FORMAT)
        + b"{}".ljust(512, b"\0")
        + bytes(1024)
    )
    target = tmp_path / "tree"
    target.mkdir()
    with pytest.raises(IntegrityError, match="not an ordinary file"):
        unpack_module(file, target, pin=forge_pin("acme/m"), budget=Budget())
    assert not list(target.rglob("hidden.pp"))


@pytest.mark.parametrize(
    ("kind", "headers"),
    [
        (tarfile.XHDTYPE, {"GNU.sparse.size": "9", "GNU.sparse.map": "7,2"}),
        (tarfile.XHDTYPE, {"GNU.sparse.major": "1", "GNU.sparse.realsize": "9"}),
        (tarfile.XHDTYPE, {"size": "1"}),
        (tarfile.XGLTYPE, {"path": "m-1.0.0/other"}),
        (tarfile.XGLTYPE, {"GNU.sparse.size": "9"}),
    ],
)
def test_a_header_that_changes_what_a_member_is_is_refused(
    tmp_path: Path, kind: bytes, headers: dict[str, str]
) -> None:
    """Tar writes another file for each of these than one that reads the member alone."""
    file = tmp_path / "m.tar"
    with tarfile.open(file, "w", format=tarfile.PAX_FORMAT) as made:
        if kind == tarfile.XGLTYPE:
            made.fileobj.write(tarfile.TarInfo.create_pax_global_header(headers))
        member = tarfile.TarInfo("m-1.0.0/metadata.json")
        member.size, member.pax_headers = 2, {} if kind == tarfile.XGLTYPE else headers
        made.addfile(member, io.BytesIO(b"{}"))
    target = tmp_path / "tree"
    target.mkdir()
    with pytest.raises(IntegrityError, match=r"sparse|names one"):
        unpack_module(file, target, pin=forge_pin("acme/m"), budget=Budget())

"""A virtual environment for another machine's Python, made of wheels and checked without running.

What is checked: no requirement is missing, each compiled file fits Python, architecture and glibc,
a SQLite of the package's own is new enough, and nothing names the machine that built it.
"""

import re
import shutil
import socket
import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path

from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from targets import HERE, WHEELS_FOR, BuildError, Payload, Target, numbers, oldest_sqlite, run

LIBRARY = "usr/lib/localpuppet"
# What a node has in any case, for compiled files: the C library, its loader, and C++.
_PRESENT = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|pthread|util|resolv|gcc_s|stdc\+\+))\.so.*")
_COMPILED = re.compile(r"\.so(\.[0-9]+)*$")
_MACHINES = {"x86_64": "EM_X86_64", "aarch64": "EM_AARCH64"}
# The version in a static SQLite, as it stands among its texts.
_SQLITE = re.compile(rb"\b(3\.\d{1,3}\.\d{1,2})\0")
# What pip, uv and setuptools leave for themselves, and what names the building machine.
_OF_INSTALLERS = ("RECORD", "direct_url.json", "INSTALLER", "REQUESTED", "uv_cache.json")
# No interpreter finds tests and C sources of libraries useful on a node.
_UNUSED = ("*.pxd", "*.pyx", "*.h", "*.c", "*.pyi")
# rich imports these, an eighth of a package, only to colour source code and Markdown.
_LEFT_OUT = ("markdown-it-py", "mdurl", "pygments")


def make(payload: Payload, wheel: Path, root: Path) -> None:
    """Write the environment below `root`, as a package has it."""
    library = root / LIBRARY
    site = library / "lib" / f"python{payload.python}" / "site-packages"
    site.mkdir(parents=True)
    locks = ["requirements.txt", *(["sqlite.txt"] if payload.own_sqlite else [])]
    fitting = ["--python-version", payload.python]
    fitting += ["--python-platform", f"{payload.architecture}-{WHEELS_FOR}", "--target", str(site)]
    for lock in locks:
        # nkeys is Python only, and has no wheel.
        only = ["--only-binary", ":all:", "--no-binary", "nkeys", "--require-hashes"]
        uv("pip", "install", *fitting, *only, "-r", str(HERE / lock))
    uv("pip", "install", *fitting, "--no-deps", str(wheel))
    uv("pip", "uninstall", "--target", str(site), *_LEFT_OUT)
    for name in ("bin", "share", "include"):
        shutil.rmtree(site / name, ignore_errors=True)
    (site / ".lock").unlink(missing_ok=True)
    for name in (*_OF_INSTALLERS, *_UNUSED):
        for path in site.rglob(name):
            path.unlink()
    for path in [*site.rglob("__pycache__"), *site.glob("*/tests"), *site.glob("*/test")]:
        shutil.rmtree(path)
    bin_ = library / "bin"
    bin_.mkdir()
    (bin_ / "python").symlink_to(f"/usr/bin/python{payload.python}")
    (bin_ / "python3").symlink_to("python")
    (library / "pyvenv.cfg").write_text(
        f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {payload.python}\n"
    )
    # Isolated: variables that sudo keeps (PYTHONPATH) name no code that root imports. And no run
    # writes here.
    program = bin_ / "localpuppet"
    program.write_text(
        f"#!/{LIBRARY}/bin/python -IB\nimport sys\n"
        "from localpuppet.__main__ import main\n\nsys.exit(main())\n"
    )
    program.chmod(0o755)


def uv(*arguments: str) -> None:
    """Run the uv of the build."""
    program = Path(sys.executable).with_name("uv")
    settings = ("--quiet", "--no-config", "--system-certs")
    run(program, *settings, *arguments, more={"UV_LINK_MODE": "copy", "UV_HTTP_TIMEOUT": "120"})


def site_of(root: Path, payload: Payload) -> Path:
    """Return where the libraries of a payload are."""
    return root / LIBRARY / "lib" / f"python{payload.python}" / "site-packages"


def inside(root: Path, payload: Payload) -> list[Distribution]:
    """Return the distributions of a payload, by name."""
    found = distributions(path=[str(site_of(root, payload))])
    return sorted(found, key=lambda distribution: canonicalize_name(distribution.name))


def check(root: Path, target: Target, traces: list[Path]) -> None:
    """Raise BuildError for what would not work on the target, with each reason."""
    payload = target.payload
    wrong = [*_missing(root, payload), *_unfit(root, target), *_traces(root, traces)]
    if payload.own_sqlite:
        wrong += _old_sqlite(site_of(root, payload))
    if wrong:
        raise BuildError("\n  ".join([f"{target.title}, {payload.architecture}:", *wrong]))


def _missing(root: Path, payload: Payload) -> Iterator[str]:
    """Yield requirements that are not there, as the target's Python would evaluate them."""
    there = {canonicalize_name(found.name): found.version for found in inside(root, payload)}
    environment: dict[str, str | set[str]] = {
        **{name: str(value) for name, value in default_environment().items()},
        "python_version": payload.python,
        "python_full_version": f"{payload.python}.0",
        "platform_machine": payload.architecture,
    }
    extras = {"localpuppet": ["all", "etcd", "fast", "fleet", "nats", "sealed", "srv", "web"]}
    for found in inside(root, payload):
        name = canonicalize_name(found.name)
        for text in found.requires or []:
            needed = Requirement(text)
            if needed.name in _LEFT_OUT:
                continue
            wanted = needed.marker is None or any(
                needed.marker.evaluate({**environment, "extra": extra})
                for extra in ["", *extras.get(name, [])]
            )
            version = there.get(canonicalize_name(needed.name))
            if wanted and (version is None or not needed.specifier.contains(version)):
                yield f"{name} needs {needed}, and there is {version or 'none'}"


def _unfit(root: Path, target: Target) -> Iterator[str]:
    """Yield compiled files that the target cannot load."""
    payload = target.payload
    tag = f"cpython-{payload.python.replace('.', '')}-{payload.architecture}-linux-gnu"
    compiled = sorted(path for path in root.rglob("*.so*") if _COMPILED.search(path.name))
    own = {path.name for path in compiled}
    for path in compiled:
        shown = path.relative_to(site_of(root, payload))
        if "cpython-" in path.name and tag not in path.name:
            yield f"{shown}: is for another Python"
        with path.open("rb") as file:
            elf = ELFFile(file)
            if elf["e_machine"] != _MACHINES[payload.architecture]:
                yield f"{shown}: is for another architecture"
            dynamic = elf.get_section_by_name(".dynamic")
            needed = [tag.needed for tag in dynamic.iter_tags("DT_NEEDED")] if dynamic else []
            for library in needed:
                if library not in own and not _PRESENT.fullmatch(library):
                    yield f"{shown}: needs {library}"
            for name in _versions(elf):
                if name.startswith("GLIBC_2") and numbers(name[6:]) > target.glibc:
                    yield f"{shown}: needs {name}"


def _versions(elf: ELFFile) -> Iterator[str]:
    for section in elf.iter_sections():
        if isinstance(section, GNUVerNeedSection):
            for _, auxiliary in section.iter_versions():
                yield from (entry.name for entry in auxiliary)


def _old_sqlite(site: Path) -> Iterator[str]:
    """Yield what is wrong with the SQLite in a package."""
    data = b"".join(path.read_bytes() for path in site.glob("pysqlite3/_sqlite3*.so"))
    found = [text.decode() for text in _SQLITE.findall(data)]
    if max(map(numbers, found), default=()) < oldest_sqlite():
        yield f"pysqlite3 has no SQLite that is new enough: {', '.join(found) or 'none'}"


def _traces(root: Path, traces: list[Path]) -> Iterator[str]:
    """Yield files that name a directory of the build, or its machine."""
    host = socket.gethostname()
    # 'debian' or 'localhost' would be in any text.
    words = [str(path).encode() for path in traces] + [host.encode()] * (
        len(host) > len("localhost")
    )
    for path in sorted(root.rglob("*")):
        if path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            for word in words:
                if word in data:
                    yield f"{path.relative_to(root)}: names {word.decode()}"

"""Build packages for all systems.

scripts/build calls this, with the Python of an environment that has localpuppet and tools.txt.
"""

import gzip
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path

import statements
from packing import Build, pack
from payload import LIBRARY, check, make
from targets import HERE, BuildError, Payload, Target, chooser, chosen

CLONE = HERE.parents[1]
# At a time: packing is one thread each.
WORKERS = 2


def common(root: Path, date: str) -> None:
    """Write the files that fit each system: documentation, units, completions, man pages."""
    share = root / "usr/share"
    doc = share / "doc/localpuppet"
    doc.mkdir(parents=True)
    shutil.copy(CLONE / "LICENSE", doc / "copyright")
    shutil.copy(CLONE / "README.md", doc)
    shutil.copytree(CLONE / "docs", doc / "docs", ignore=shutil.ignore_patterns("__pycache__"))
    zipped(CLONE / "CHANGELOG.md", doc / "changelog.gz")
    (share / "man").mkdir()
    subprocess.run([sys.executable, HERE / "man_pages.py", share / "man", date], check=True)
    for page in share.glob("man/man?/*"):
        zipped(page, page.with_name(f"{page.name}.gz"))
        page.unlink()
    for shell, name in {
        "bash": "bash-completion/completions/localpuppet",
        "zsh": "zsh-completion/_localpuppet",
        "fish": "fish/vendor_completions.d/localpuppet.fish",
    }.items():
        file = share / name
        file.parent.mkdir(parents=True)
        with file.open("w") as out:
            subprocess.run(
                [sys.executable, "-m", "localpuppet", "completion", shell], stdout=out, check=True
            )
    units = root / "usr/lib/systemd/system"
    units.mkdir(parents=True)
    for unit in (CLONE / "localpuppet/base/share/units").iterdir():
        text = unit.read_text().replace("/usr/bin/env localpuppet", "/usr/bin/localpuppet")
        (units / unit.name).write_text(text)
    users = root / "usr/lib/sysusers.d"
    users.mkdir()
    shutil.copy(HERE / "sysusers.conf", users / "localpuppet.conf")
    (root / "usr/bin").mkdir()
    (root / "usr/bin/localpuppet").symlink_to(f"../../{LIBRARY}/bin/localpuppet")


def zipped(source: Path, target: Path) -> None:
    """Write `target` without a time."""
    target.write_bytes(gzip.compress(source.read_bytes(), mtime=0))


def built(build: Build, targets: list[Target], wheel: Path, work: Path) -> list[Path]:
    """Build all targets, each payload once."""
    payloads: dict[Payload, Path] = {}
    for payload in dict.fromkeys(target.payload for target in targets):
        say(f"installing the libraries of {payload.name}")
        payloads[payload] = work / "payloads" / payload.name
        make(payload, wheel, payloads[payload])
    for target in targets:
        check(payloads[target.payload], target, [work, CLONE])

    def one(target: Target) -> Path:
        with tempfile.TemporaryDirectory(dir=work) as directory:
            package = pack(build, target, payloads[target.payload], Path(directory))
        say(f"packed {package.name}")
        statements.write(build, target, payloads[target.payload], package)
        return package

    with ThreadPoolExecutor(WORKERS) as pool:
        return list(pool.map(one, targets))


def say(text: str) -> None:
    """Tell a person who waits which step begins or has ended."""
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    """Return the exit code."""
    parser = chooser()
    parser.add_argument("version")
    parser.add_argument("epoch", type=int)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("directory", type=Path)
    options = parser.parse_args()
    try:
        targets = chosen(options)
        build = Build(options.version, options.epoch, options.work / "common", options.directory)
        common(build.common, f"{datetime.fromtimestamp(build.epoch, UTC):%Y-%m-%d}")
        for package in built(build, targets, options.wheel, options.work):
            print(package)
    except BuildError as error:
        print(f"scripts/build: error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

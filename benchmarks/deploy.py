"""The cost of staging a release on a node, compared with r10k, g10k and git.

Makes module repositories (`repositories.py`) and one Puppetfile for Debian's r10k and g10k, imports
and locks the same Puppetfile as releases of localpuppet, and measures four steps:

    cold      the node has no modules
    no-op     no changes; localpuppet stats every file
    bump      one module has another tag
    second    a second release on the node, which shares all modules but one

`git clone --depth 1 --branch TAG`, four at a time, is the limit for cold; a release pack avoids it
with one transfer. After every step the script compares every byte of every module with its
repository. The output has medians of alternating rounds. Wall and CPU seconds include all children.
The peak is that of the largest process, and at least that of this script. Disk is what the step
added. On a busy machine, a tool with many processes gets a larger part than one with four, so
compare the CPU seconds, too. The script writes to a tmpfs (root), where syncing costs nothing, or
below --directory.

    benchmarks/deploy.py [--modules 50 --modules 200] [--rounds 3] [--directory DIR]
"""

import argparse
import hashlib
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from repositories import Module, contents, git, make_modules, tag

REPOSITORY = Path(__file__).parent.parent
PYTHON = sys.executable  # the interpreter itself: a shim on PATH costs 100 ms
LEFT_BY_TOOLS = {".git", ".latest_commit"}
STEPS = ("cold", "no-op", "bump", "second")
# The tags of the first two modules by step; the others never change.
TAGS = {"cold": (12, 12), "no-op": (12, 12), "bump": (13, 12), "second": (13, 13)}
RELEASES = {"cold": "r1", "no-op": "r1", "bump": "r2", "second": "r3"}
# Step → (peer, maximum ratio to its time) for at least this number of modules.
BARS = {
    50: {"cold": 0.7, "no-op": 0.25, "bump": 0.35, "second": 0.25},
    200: {"cold": 0.6, "no-op": 0.06, "bump": 0.06, "second": 0.06},
}
CLONE_BAR = 1.15
PACK_BAR = 0.15


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of one step of one tool: seconds, MiB of memory, and MiB that it added on disk."""

    wall: float
    cpu: float
    peak: float
    disk: float


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The modules that all tools deploy.

    Attributes:
        home: The directory of all files.
        modules: The repositories.
        tags: Step → module → tag.
    """

    home: Path
    modules: Sequence[Module]
    tags: dict[str, dict[str, str]]

    def puppetfile(self, step: str) -> Path:
        """Return the Puppetfile of a step."""
        return self.home / f"Puppetfile.{RELEASES[step]}"


class Tool:
    """A tool under test, with a directory that is emptied before each round."""

    name = ""
    steps: Sequence[str] = STEPS

    def __init__(self, world: World) -> None:
        self.world = world
        self.directory = world.home / self.name.replace(" ", "-")

    def prepare(self) -> None:
        """Empty the directory."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir()

    def command(self, step: str) -> list[str]:
        """Return the command of a step."""
        raise NotImplementedError

    def target(self, step: str) -> Path:
        """Return the directory of modules that the step is to make."""
        return self.directory / ("second" if step == "second" else "first")


class R10k(Tool):
    """r10k: one module after the other."""

    name = "r10k"

    def prepare(self) -> None:
        """Empty the directory, and configure the cache."""
        super().prepare()
        (self.directory / "r10k.yaml").write_text(f"cachedir: {self.directory}/cache\n")

    def command(self, step: str) -> list[str]:
        """Return the command of a step."""
        return [
            *("r10k", "puppetfile", "install", "--config", str(self.directory / "r10k.yaml")),
            *("--puppetfile", str(self.world.puppetfile(step))),
            *("--moduledir", str(self.target(step))),
        ]


class G10k(Tool):
    """g10k: up to 50 modules at a time."""

    name = "g10k"

    def command(self, step: str) -> list[str]:
        """Return the command of a step."""
        return [
            *("g10k", "-quiet", "-puppetfile", "-cachedir", str(self.directory / "cache")),
            *("-puppetfilelocation", str(self.world.puppetfile(step))),
            *("-moduledir", str(self.target(step))),
        ]


class GitClone(Tool):
    """git alone, four at a time: the cost of the transfer."""

    name = "git clone"
    steps = ("cold",)

    def command(self, step: str) -> list[str]:
        """Return the command of a step."""
        lines = [
            f"{self.world.tags[step][module.name]} {module.url} {self.target(step)}/{module.name}\n"
            for module in self.world.modules
        ]
        (self.directory / "list").write_text("".join(lines))
        clone = "xargs -P4 -n3 git clone --quiet --depth 1 -c advice.detachedHead=false --branch"
        return ["/bin/sh", "-c", f"{clone} < {shlex.quote(str(self.directory / 'list'))}"]


class Localpuppet(Tool):
    """localpuppet: the release's own repository, and all modules by its lock."""

    name = "localpuppet"

    def prepare(self) -> None:
        """Empty the directory; make the root of a node."""
        super().prepare()
        (self.directory / "localpuppet.yaml").write_text(
            f"allow_file_urls: true\nsources: {{site: {{git: 'file://{self.world.home}/release'}}}}\n"
        )

    def command(self, step: str) -> list[str]:
        """Return the command of a step."""
        return localpuppet(self.directory, "stage", "--no-parse", f"site/tags/{RELEASES[step]}")

    def target(self, step: str) -> Path:
        """Return the directory of modules that the step is to make."""
        return self.directory / "modules" / "site" / "tags" / RELEASES[step]


class LocalpuppetPack(Localpuppet):
    """localpuppet, cold, from a release pack: one file instead of a fetch a module."""

    name = "localpuppet pack"
    steps = ("cold",)

    def command(self, step: str) -> list[str]:
        """Return the command of a step."""
        (pack,) = (self.world.home / "packs").glob("*.tar.gz")
        return [*super().command(step), "--pack", str(pack)]


TOOLS = (Localpuppet, G10k, GitClone, LocalpuppetPack, R10k)


def localpuppet(root: Path, *arguments: str) -> list[str]:
    """Return a command line of localpuppet."""
    return [PYTHON, "-m", "localpuppet", "--root", str(root), *arguments]


def environment(home: Path) -> dict[str, str]:
    """Return the environment of every tool."""
    return {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "LC_ALL": "C.UTF-8",
        "PYTHONPATH": str(REPOSITORY),
        "GIT_CONFIG_GLOBAL": os.devnull,
    }


def make_world(home: Path, count: int) -> World:
    """Make the repositories, a Puppetfile for each release, and the releases."""
    modules = make_modules(home / "upstream", count)
    tags = {step: {module.name: tag(12) for module in modules} for step in STEPS}
    for step, numbers in TAGS.items():
        for module, number in zip(modules, numbers, strict=False):
            tags[step][module.name] = tag(number)
    world = World(home=home, modules=modules, tags=tags)
    site, maker = home / "release", home / "maker"
    site.mkdir()
    maker.mkdir()
    git(site, "init", "--quiet", "--initial-branch=main")
    (maker / "localpuppet.yaml").write_text("allow_file_urls: true\n")
    for step in ("cold", "bump", "second"):
        file = world.puppetfile(step)
        file.write_text(
            "".join(
                f"mod '{module.name}',\n  :git => '{module.url}',\n"
                f"  :tag => '{tags[step][module.name]}'\n"
                for module in modules
            )
        )
        manifest = str(site / "manifest.yaml")
        run(localpuppet(maker, "release", "import", str(file), "-o", manifest), home)
        run(localpuppet(maker, "release", "lock", str(site)), home)
        git(site, "add", "-A")
        git(site, "commit", "--quiet", "-m", RELEASES[step])
        git(site, "tag", "-a", "-m", RELEASES[step], RELEASES[step])
    (maker / "localpuppet.yaml").write_text(
        f"allow_file_urls: true\nsources: {{site: {{git: 'file://{site}'}}}}\n"
    )
    release = f"site/tags/{RELEASES['cold']}"
    packs = home / "packs"
    packs.mkdir()
    run(
        localpuppet(maker, "release", "package", release, "--format", "tar", "-o", str(packs)), home
    )
    return world


def run(command: list[str], home: Path) -> tuple[float, float, float]:
    """Run a command; return its seconds of wall and CPU time and its peak in MiB."""
    log = home / "log"
    with log.open("wb") as output:
        begun = time.perf_counter()
        process = subprocess.Popen(
            command, cwd=home, env=environment(home), stdout=output, stderr=output
        )
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - begun
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{shlex.join(command)} exited {process.returncode}:\n{log.read_text()}")
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def on_disk(directory: Path) -> int:
    """Return the bytes that are allocated below `directory`, hard links counted once."""
    inodes = {}
    for parent, directories, files in os.walk(directory):
        for name in (*directories, *files):
            status = os.lstat(os.path.join(parent, name))  # noqa: PTH118 - fast for many files
            inodes[status.st_ino] = status.st_blocks * 512
    return sum(inodes.values())


def verify(world: World, tool: Tool, step: str, wanted: dict[tuple[str, str], object]) -> None:
    """Compare every byte of every module with its repository."""
    for module in world.modules:
        key = (module.name, world.tags[step][module.name])
        if key not in wanted:
            wanted[key] = contents(module, key[1])
        root = os.path.realpath(tool.target(step) / module.name)
        found = {}
        for parent, directories, files in os.walk(root):
            directories[:] = [name for name in directories if name not in LEFT_BY_TOOLS]
            for name in files:
                if name not in LEFT_BY_TOOLS:
                    data = (Path(parent) / name).read_bytes()
                    blob = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False)
                    found[f"{parent}/{name}"[len(root) + 1 :]] = blob.hexdigest()
        if found != wanted[key]:
            raise SystemExit(f"{tool.name}, {step}: {module.name} is not what {key[1]} is")


def measure(world: World, rounds: int) -> dict[tuple[str, str], Cost]:
    """Return the median costs by tool and step; the order of the tools changes each round."""
    costs: dict[tuple[str, str], list[Cost]] = {}
    wanted: dict[tuple[str, str], object] = {}
    for number in range(rounds):
        tools = [kind(world) for kind in (TOOLS if number % 2 else reversed(TOOLS))]
        for tool in tools:
            tool.prepare()
        for step in STEPS:
            for tool in tools:
                if step not in tool.steps:
                    continue
                before = on_disk(tool.directory)
                wall, cpu, peak = run(tool.command(step), world.home)
                disk = (on_disk(tool.directory) - before) / 1048576
                verify(world, tool, step, wanted)
                cost = Cost(wall=wall, cpu=cpu, peak=peak, disk=disk)
                costs.setdefault((tool.name, step), []).append(cost)
        for tool in tools:
            shutil.rmtree(tool.directory)
    return {
        key: Cost(
            wall=statistics.median(cost.wall for cost in found),
            cpu=statistics.median(cost.cpu for cost in found),
            peak=statistics.median(cost.peak for cost in found),
            disk=statistics.median(cost.disk for cost in found),
        )
        for key, found in costs.items()
    }


def tables(count: int, costs: dict[tuple[str, str], Cost]) -> str:
    """Return the results as Markdown: ratios and bars, then all figures."""
    bars = BARS[max((size for size in BARS if size <= count), default=min(BARS))]
    peers = [("localpuppet", step, "g10k", bars[step]) for step in STEPS]
    if count >= 200:
        peers.insert(1, ("localpuppet", "cold", "git clone", CLONE_BAR))
        peers.append(("localpuppet pack", "cold", "g10k", PACK_BAR))
    lines = [
        f"### {count} modules",
        "",
        "| tool | step | its time | peer | its time | ratio | bar | | ratio of CPU |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for tool, step, peer, bar in peers:
        ours, theirs = costs[tool, step].wall, costs[peer, step].wall
        cpu = costs[tool, step].cpu / costs[peer, step].cpu
        word = "reached" if ours / theirs <= bar else "**missed**"
        lines.append(
            f"| {tool} | {step} | {ours:.3f} s | {peer} | {theirs:.3f} s | {ours / theirs:.3f}"
            f" | {bar:.2f} | {word} | {cpu:.3f} |"
        )
    lines += [
        "",
        "| tool | step | wall s | CPU s | peak MiB | disk + MiB |",
        "|---|---|---|---|---|---|",
    ]
    for kind in TOOLS:
        for step in kind.steps:
            cost = costs[kind.name, step]
            lines.append(
                f"| {kind.name} | {step} | {cost.wall:.3f} | {cost.cpu:.3f} | {cost.peak:.1f}"
                f" | {cost.disk:.1f} |"
            )
    return "\n".join(lines) + "\n"


@contextmanager
def place(directory: Path | None) -> Iterator[Path]:
    """Yield an empty directory: below `directory`, or on a tmpfs made for it."""
    with tempfile.TemporaryDirectory(prefix="deploy-", dir=directory) as name:
        if directory is not None:
            yield Path(name)
            return
        options = ["-o", "mode=0700", "-t", "tmpfs"]
        subprocess.run(["mount", *options, "deploy-benchmark", name], check=True)  # noqa: S607
        try:
            yield Path(name)
        finally:
            subprocess.run(["umount", name], check=True)  # noqa: S607


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Cost of deploying a release.")
    parser.add_argument("--modules", type=int, action="append", metavar="N", help="default 50, 200")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--directory", type=Path, metavar="DIR", help="instead of a new tmpfs")
    options = parser.parse_args()
    where = f"below {options.directory}" if options.directory else "on a tmpfs made for it"
    print(f"Written {where}; {options.rounds} rounds; {os.cpu_count()} cores.\n", flush=True)
    for count in options.modules or [50, 200]:
        with place(options.directory) as home:
            world = make_world(home, count)
            print(tables(count, measure(world, options.rounds)), flush=True)


if __name__ == "__main__":
    main()

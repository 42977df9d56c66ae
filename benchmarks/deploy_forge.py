"""The cost of modules of a Forge as archives over HTTP, compared with r10k and g10k.

Makes archives of the repositories of `deploy.py` and serves them with the Forge's API from another
process: to r10k and g10k over http, and to localpuppet, which accepts no http, over https:

    cold      the node has no modules
    no-op     no changes; localpuppet stats every file

After every step the script compares every byte of every module with its archive. The output has
medians of alternating rounds; wall and CPU seconds include all children except the server.

    benchmarks/deploy_forge.py [--modules 50] [--rounds 3] [--directory DIR]
"""

import argparse
import io
import multiprocessing
import os
import shlex
import shutil
import statistics
import sys
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from deploy import LEFT_BY_TOOLS, localpuppet, place, run
from repositories import git, make_modules, tag

sys.path.insert(0, str(Path(__file__).parents[1]))

from tests.rigs.module_forge import ModuleForge, archive, serve
from tests.rigs.tls import Authority

OWNER = "bench"
VERSION = "1.12.0"
STEPS = ("cold", "no-op")
# Step → maximum ratio to g10k's time.
BARS = {"cold": 0.6, "no-op": 0.1}
Files = Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """The modules that all tools deploy.

    Attributes:
        home: The directory of all files.
        wanted: Module → path → bytes.
        http: The forge for r10k and g10k.
        https: The same forge for localpuppet.
    """

    home: Path
    wanted: Mapping[str, Files]
    http: str
    https: str

    def puppetfile(self, head: str = "") -> str:
        """Return a Puppetfile of all modules."""
        return head + "".join(f"mod '{OWNER}/{name}', '{VERSION}'\n" for name in self.wanted)


class Tool:
    """A tool under test, with a directory that is emptied before each round."""

    name = ""

    def __init__(self, world: World) -> None:
        self.world = world
        self.directory = world.home / self.name

    def prepare(self) -> None:
        """Empty the directory."""
        shutil.rmtree(self.directory, ignore_errors=True)
        self.directory.mkdir()

    def command(self) -> list[str]:
        """Return the command."""
        raise NotImplementedError

    def target(self) -> Path:
        """Return the directory of modules that it is to make."""
        return self.directory / "modules"


class R10k(Tool):
    """r10k: four modules at a time."""

    name = "r10k"

    def prepare(self) -> None:
        """Empty the directory, and configure the cache and the forge."""
        super().prepare()
        text = f"cachedir: {self.directory}/cache\nforge:\n  baseurl: {self.world.http}\n"
        (self.directory / "r10k.yaml").write_text(text)
        (self.directory / "Puppetfile").write_text(self.world.puppetfile())

    def command(self) -> list[str]:
        """Return the command."""
        return [
            *("r10k", "puppetfile", "install", "--config", str(self.directory / "r10k.yaml")),
            *("--puppetfile", str(self.directory / "Puppetfile")),
            *("--moduledir", str(self.target())),
        ]


class G10k(Tool):
    """g10k: up to 50 modules at a time."""

    name = "g10k"

    def prepare(self) -> None:
        """Empty the directory; the Puppetfile names the forge."""
        super().prepare()
        head = f"forge.baseUrl {self.world.http}\n"
        (self.directory / "Puppetfile").write_text(self.world.puppetfile(head))

    def command(self) -> list[str]:
        """Return the command."""
        return [
            *("g10k", "-quiet", "-puppetfile", "-cachedir", str(self.directory / "cache")),
            *("-puppetfilelocation", str(self.directory / "Puppetfile")),
            *("-moduledir", str(self.target())),
        ]


class Localpuppet(Tool):
    """localpuppet: the release's own repository, and all modules by its lock."""

    name = "localpuppet"

    def prepare(self) -> None:
        """Empty the directory; make the root of a node."""
        super().prepare()
        (self.directory / "localpuppet.yaml").write_text(
            settings(self.world.home, self.world.https)
        )

    def command(self) -> list[str]:
        """Return the command."""
        return localpuppet(self.directory, "stage", "--no-parse", "site/tags/r1")

    def target(self) -> Path:
        """Return the directory of modules that it is to make."""
        return self.directory / "modules" / "site" / "tags" / "r1"


TOOLS = (Localpuppet, G10k, R10k)


def settings(home: Path, https: str) -> str:
    """Return the settings of a node, and of the release's maker."""
    return (
        f"allow_file_urls: true\nsources: {{site: {{git: 'file://{home}/site'}}}}\n"
        f"forge: {{url: '{https}', ca: '{home}/ca.pem'}}\n"
    )


def archives(home: Path, count: int) -> dict[str, bytes]:
    """Return the archive of each module, by its name."""
    found = {}
    for module in make_modules(home / "upstream", count):
        packed = git(module.path, "archive", "--format=tar", tag(12))
        with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
            files = {
                member.name: body.read().decode()
                for member in tar
                if (body := tar.extractfile(member)) is not None
            }
        found[module.name] = archive(f"{OWNER}/{module.name}", VERSION, files)
    return found


def files_of(packed: bytes) -> Files:
    """Return path → bytes of an archive, without the directory at its top."""
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        return {
            member.name.partition("/")[2]: body.read()
            for member in tar
            if (body := tar.extractfile(member)) is not None
        }


def _serve(forge: ModuleForge, home: Path, ready: Connection) -> None:
    with serve(forge, None) as http, serve(forge, Authority(home)) as https:
        ready.send((http, https))
        ready.recv()


@contextmanager
def served(found: Mapping[str, bytes], home: Path) -> Iterator[tuple[str, str]]:
    """Serve archives from another process; yield its URLs, http and https."""
    names = {f"{OWNER}-{name}-{VERSION}.tar.gz": data for name, data in found.items()}
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(
        target=_serve, args=(ModuleForge(files=names), home, theirs), daemon=True
    )
    process.start()
    try:
        yield ours.recv()
    finally:
        ours.send(None)
        process.join()


def release(world: World) -> None:
    """Make the release of localpuppet: the same modules, locked and tagged."""
    site, maker = world.home / "site", world.home / "maker"
    site.mkdir()
    maker.mkdir()
    git(site, "init", "--quiet", "--initial-branch=main")
    (maker / "localpuppet.yaml").write_text(settings(world.home, world.https))
    (maker / "Puppetfile").write_text(world.puppetfile())
    manifest = ("-o", str(site / "manifest.yaml"))
    puppetfile = str(maker / "Puppetfile")
    run(localpuppet(maker, "release", "import", puppetfile, *manifest), world.home)
    run(localpuppet(maker, "release", "lock", str(site)), world.home)
    git(site, "add", "-A")
    git(site, "commit", "--quiet", "-m", "r1")
    git(site, "tag", "-a", "-m", "r1", "r1")


def verify(world: World, tool: Tool) -> None:
    """Compare every byte of every module with its archive."""
    for name, wanted in world.wanted.items():
        root = (tool.target() / name).resolve()
        found = {
            path.relative_to(root).as_posix(): path.read_bytes()
            for path in root.rglob("*")
            if path.is_file() and path.name not in LEFT_BY_TOOLS
        }
        if found != wanted:
            raise SystemExit(f"{tool.name}: {name} is not what its archive is")


def measure(world: World, rounds: int) -> dict[tuple[str, str], tuple[float, float]]:
    """Return the median seconds of wall and CPU by tool and step; tools alternate."""
    costs: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for number in range(rounds):
        tools = [kind(world) for kind in (TOOLS if number % 2 else reversed(TOOLS))]
        for tool in tools:
            tool.prepare()
        for step in STEPS:
            for tool in tools:
                wall, cpu, _ = run(tool.command(), world.home)
                verify(world, tool)
                costs.setdefault((tool.name, step), []).append((wall, cpu))
    return {
        key: (statistics.median(one[0] for one in found), statistics.median(o[1] for o in found))
        for key, found in costs.items()
    }


def table(count: int, costs: Mapping[tuple[str, str], tuple[float, float]]) -> str:
    """Return the results as Markdown."""
    lines = [
        f"### {count} modules of a Forge",
        "",
        "| step | localpuppet | g10k | ratio | bar | | ratio of CPU | r10k |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for step in STEPS:
        (ours, our_cpu), (theirs, their_cpu) = costs["localpuppet", step], costs["g10k", step]
        word = "reached" if ours / theirs <= BARS[step] else "**missed**"
        lines.append(
            f"| {step} | {ours:.3f} s | {theirs:.3f} s | {ours / theirs:.3f} | {BARS[step]:.2f}"
            f" | {word} | {our_cpu / their_cpu:.3f} | {costs['r10k', step][0]:.3f} s |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Cost of deploying modules of a Forge.")
    parser.add_argument("--modules", type=int, default=50, metavar="N")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--directory", type=Path, metavar="DIR", help="instead of a new tmpfs")
    options = parser.parse_args()
    words = shlex.join(sys.argv[1:]) or "no options"
    print(f"{words}; {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}.\n", flush=True)
    with place(options.directory) as home:
        packed = archives(home, options.modules)
        wanted = {name: files_of(data) for name, data in packed.items()}
        with served(packed, home) as (http, https):
            world = World(home=home, wanted=wanted, http=http, https=https)
            release(world)
            print(table(options.modules, measure(world, options.rounds)), flush=True)


if __name__ == "__main__":
    main()

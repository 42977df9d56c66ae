"""What a preview costs: 10,000 nodes with the real catalog of Debian's modules (156 resources).

- The cache is filled from one real compile for each role, with the names of the other nodes put in:
  10,000 real compiles take half an hour. The first fill is measured with `--sample` nodes instead.
- Every figure is of the command `localpuppet preview`, in a separate process.
- CPU for each catalog is measured in turn with `puppet catalog compile` and, if it is installed,
  octocatalog-diff.

Needs root, Puppet and Debian's packages puppet-module-puppetlabs-{apache,mysql,ntp,haproxy}.

    benchmarks/preview.py [--nodes 10000] [--sample 100] [--pairs 3] [--unshared]
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from overhead import DEBIAN_MODULES, SITE

from localpuppet.node.app import NodeApp
from localpuppet.node.preview.cache import CacheFiller
from localpuppet.node.preview.compile_request import (
    CompileEngine,
    CompileRequest,
    CompileResult,
    RawReads,
)
from localpuppet.node.preview.workspace import PreviewOrder, PreviewWorkspace, RevisionRange
from localpuppet.node.puppet.catalog import CanonicalCatalog, CatalogResource
from localpuppet.node.releases.release import Release

ROLES = 10
BARS = {
    "none affected": 5.0,
    "the same again": 2.0,
    "2 % affected": 40.0,
}
HIERA = """version: 5
hierarchy:
  - name: Nodes
    path: "nodes/%{trusted.certname}.yaml"
  - name: Roles
    path: "roles/%{facts.role}.yaml"
  - name: Everything
    path: common.yaml
"""
OWN = """
  file { "/etc/own/${trusted['certname']}":
    content => lookup('own', String, 'first', 'none'),
  }
"""


def name_of(number: int) -> str:
    """Return the name of a node."""
    return f"n{number:05}.example.com"


def git(directory: Path, *words: str) -> None:
    """Run git."""
    who = ("-c", "user.name=b", "-c", "user.email=b@example.com")
    command = ["git", "-C", str(directory), *who, *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


def make_repository(top: Path, nodes: int, *, unshared: bool) -> Path:
    """Return a control repository with the branches main, none and some."""
    repository = top / "control"
    for path in ("data/nodes", "data/roles", "site/site/manifests", "manifests"):
        (repository / path).mkdir(parents=True)
    shutil.copytree(DEBIAN_MODULES, repository / "modules", symlinks=False)
    (repository / "manifest.yaml").write_text("moduledir: modules\n")
    (repository / "environment.conf").write_text("modulepath = site:modules\n")
    (repository / "hiera.yaml").write_text(HIERA)
    tagging = "\n  tag $trusted['certname']\n" if unshared else ""
    site = SITE.replace("class site {", f"class site {{{tagging}{OWN}")
    (repository / "site/site/manifests/init.pp").write_text(site)
    (repository / "manifests/site.pp").write_text("include site\n")
    (repository / "data/common.yaml").write_text("ntp::service_ensure: running\n")
    for role in range(ROLES):
        (repository / f"data/roles/role{role}.yaml").write_text(f"ntp::minpoll: {role % 5 + 4}\n")
    for number in range(nodes):
        (repository / f"data/nodes/{name_of(number)}.yaml").write_text(f"own: '{number}'\n")
    git(repository, "init", "-q", "-b", "main")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "main")
    git(repository, "checkout", "-qb", "none")
    (repository / "data/common.yaml").write_text("ntp::service_ensure: running\nunused: 1\n")
    (repository / "README").write_text("none\n")
    git(repository, "add", "-A")
    git(repository, "commit", "-qm", "none")
    git(repository, "checkout", "-qb", "some", "main")
    for number in range(0, nodes, 50):
        (repository / f"data/nodes/{name_of(number)}.yaml").write_text("own: changed\n")
    git(repository, "commit", "-qam", "some")
    git(repository, "checkout", "-q", "main")
    return repository


def make_captures(directory: Path, nodes: int) -> Path:
    """Write captures with this machine's facts and the names of the nodes."""
    asked = ["puppet", "facts", "show", "--show-legacy"]
    output = subprocess.run(asked, check=True, capture_output=True, text=True)
    asked = ["puppet", "--version"]
    version = subprocess.run(asked, check=True, capture_output=True, text=True)
    own_version = version.stdout.strip()
    both = {"puppetversion": own_version, "clientversion": own_version}  # a run adds them
    facts = {**json.loads(output.stdout), **both}
    directory.mkdir()
    for number in range(nodes):
        name = name_of(number)
        short = name.partition(".")[0]
        own = {**facts, "role": f"role{number % ROLES}", "fqdn": name, "hostname": short}
        own["networking"] = {**facts["networking"], "fqdn": name, "hostname": short}
        own["system_uptime"] = {"seconds": number}
        (directory / f"{name}.json").write_text(json.dumps({"facts": own}))
    return directory


@dataclass(eq=False)
class SubstitutingEngine:
    """Compiles one node of each role, and puts the names of others into its result."""

    engine: CompileEngine
    results: dict[str, tuple[str, CompileResult]] = field(default_factory=dict)

    def compile(
        self, release: Release, requests: Iterable[CompileRequest]
    ) -> Iterator[CompileResult]:
        """Yield a result for each request."""
        for request in requests:
            role = str(request.facts["role"])
            if role not in self.results:
                (result,) = self.engine.compile(release, [request])
                self.results[role] = request.node, result
            name, result = self.results[role]
            yield with_name(result, name, request.node)


def with_name(result: CompileResult, before: str, after: str) -> CompileResult:
    """Return the result of one node as that of another."""
    if result.catalog is None:
        raise SystemExit(f"the catalog does not compile: {result.failure}")
    pairs = [(before, after), (before.partition(".")[0], after.partition(".")[0])]

    def replaced(text: str) -> str:
        for old, new in pairs:
            text = text.replace(old, new)
        return text

    def renamed(resource: CatalogResource) -> CatalogResource:
        text = json.dumps([resource.title, resource.parameters, resource.tags])
        new = replaced(text).replace(f'"{int(before[1:6])}"', f'"{int(after[1:6])}"')
        if new == text:
            return resource
        title, parameters, tags = json.loads(new)
        return replace(resource, title=title, parameters=parameters, tags=tuple(tags))

    catalog = result.catalog
    reads = result.reads
    return CompileResult(
        node=after,
        catalog=CanonicalCatalog(
            certname=after,
            environment=catalog.environment,
            classes=catalog.classes,
            resources=tuple(map(renamed, catalog.resources)),
            edges=tuple(
                replace(
                    edge,
                    source_title=replaced(edge.source_title),
                    target_title=replaced(edge.target_title),
                )
                if pairs[1][0] in edge.source_title + edge.target_title
                else edge
                for edge in catalog.edges
            ),
        ),
        failure=None,
        reads=RawReads(
            files=tuple(map(replaced, reads.files)),
            absent=tuple(map(replaced, reads.absent)),
            present=tuple(map(replaced, reads.present)),
            listed=reads.listed,
            keys={replaced(file): keys for file, keys in reads.keys.items()},
            facts=reads.facts,
            trusted=reads.trusted,
            parameters=reads.parameters,
            impure=reads.impure,
        ),
    )


class ProcessorTime:
    """The processor time of this process and all that it starts, by a separate control group.

    The compiler's processes are children of a process that ends them, so `getrusage` misses them.
    """

    def __init__(self) -> None:
        self._group = Path(f"/sys/fs/cgroup/cpuacct/preview-{os.getpid()}")
        self._group.mkdir()
        (self._group / "tasks").write_text(str(os.getpid()))

    def seconds(self) -> float:
        """Return the seconds until now."""
        return int((self._group / "cpuacct.usage").read_text()) / 1e9

    def close(self) -> None:
        """Leave the group, and remove it."""
        (self._group.parent / "tasks").write_text(str(os.getpid()))
        time.sleep(1)  # until its last process has ended
        self._group.rmdir()


def measured(title: str, work: Callable[[], object], *, bar: float | None = None) -> float:
    """Run something, and print its seconds on the clock and of processors."""
    processors = ProcessorTime()
    before = processors.seconds()
    begun = time.perf_counter()
    work()
    seconds = time.perf_counter() - begun
    cpu = processors.seconds() - before
    processors.close()
    note = "" if bar is None else f", bar {bar:g} s"
    print(f"{title}: {seconds:.2f} s, {cpu:.2f} s of CPU{note}", flush=True)
    return cpu


def command(root: Path, *words: str) -> Callable[[], None]:
    """Return what runs `localpuppet preview`."""
    arguments = [sys.executable, "-m", "localpuppet", "--root", str(root), "preview", *words]

    def run() -> None:
        done = subprocess.run(arguments, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit(f"{arguments}: {done.stderr}{done.stdout[-2000:]}")
        memory = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1024
        print(f"  {done.stdout.splitlines()[0]} (peak of one process {memory} MiB)")

    return run


def compare_cpu(
    top: Path, workspace: PreviewWorkspace, pairs: int, compiled: int, *, unshared: bool
) -> None:
    """Print the CPU of a catalog beside that of other tools, in turn.

    The repository and the captures are those of the compiled nodes only. Otherwise the checkout of
    10,000 data files would be a part of each catalog.
    """
    node = name_of(0)
    repository = make_repository(top, compiled, unshared=unshared)
    captures = make_captures(top / "captures", compiled)
    facts = json.loads((captures / f"{node}.json").read_text())["facts"]
    (top / "facts").mkdir()
    file = top / "facts" / f"{node}.yaml"
    values = json.dumps({**facts, "clientcert": node})
    file.write_text(f"--- !ruby/object:Puppet::Node::Facts\nname: {node}\nvalues: {values}\n")
    modules = f"{repository}/site:{repository}/modules"
    plain = ["puppet", "catalog", "compile", node, "--render-as", "json"]
    plain += ["--facts_terminus", "yaml", "--yamldir", str(top), "--modulepath", modules]
    plain += ["--hiera_config", f"{repository}/hiera.yaml", "--log_level", "err"]
    plain += ["--manifest", f"{repository}/manifests"]
    words = ["octocatalog-diff", "-n", node, "--catalog-only", "-t", "main"]
    words += ["--fact-file", str(file), "--basedir", str(repository)]
    words += ["--hiera-config", "hiera.yaml", "--puppet-binary", "/usr/bin/puppet"]
    for _ in range(pairs):
        measured("puppet catalog compile", partial(quiet, plain))
        if shutil.which("octocatalog-diff"):
            measured("octocatalog-diff --catalog-only", partial(quiet, words))
        cpu = measured(
            f"{compiled} catalogs", partial(compile_all, repository, captures, workspace, compiled)
        )
        print(f"  {cpu / compiled:.3f} s of CPU for each catalog", flush=True)


def quiet(words: list[str]) -> None:
    """Run a program."""
    env = {**os.environ, "HOME": "/root"}
    subprocess.run(words, check=True, capture_output=True, env=env)


def compile_all(repository: Path, captures: Path, workspace: PreviewWorkspace, count: int) -> None:
    """Compile catalogs into an empty cache."""
    with tempfile.TemporaryDirectory() as scratch:
        fill(repository, captures, workspace, Path(scratch) / "cache", count, substitute=False)


def fill(
    repository: Path,
    captures: Path,
    workspace: PreviewWorkspace,
    place: Path,
    count: int,
    *,
    substitute: bool,
) -> None:
    """Fill a cache with the results of the main branch."""
    order = PreviewOrder(
        work_tree=repository,
        revisions=RevisionRange.parse("main..main"),
        nodes=captures,
        cache=place,
    )
    with workspace.cache(place) as cache:
        side, _ = workspace.sides(order, cache)
        engine = workspace.engine_for(place)
        filler = CacheFiller(
            cache=cache, engine=SubstitutingEngine(engine) if substitute else engine
        )
        for compiled, _ in filler.compile(side, workspace.nodes(captures, cache)[:count]):
            if compiled.impure or compiled.failure:
                raise SystemExit(f"{compiled.node}: {compiled.impure} {compiled.failure}")


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=10_000)
    parser.add_argument("--sample", type=int, default=100)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--unshared", action="store_true", help="no two nodes share a resource")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="preview-") as scratch:
        top = Path(scratch)
        (top / "root").mkdir()
        repository = make_repository(top, given.nodes, unshared=given.unshared)
        captures = make_captures(top / "captures", given.nodes)
        workspace = NodeApp(str(top / "root")).preview()
        for compiled in (20, 100):
            (top / str(compiled)).mkdir()
            compare_cpu(
                top / str(compiled), workspace, given.pairs, compiled, unshared=given.unshared
            )
        begun = time.perf_counter()
        cpu = measured(
            f"first fill of {given.sample} nodes",
            lambda: fill(
                repository, captures, workspace, top / "sample", given.sample, substitute=False
            ),
        )
        share = given.nodes / given.sample / 60
        print(
            f"  {given.nodes} nodes: {(time.perf_counter() - begun) * share:.0f} minutes on the"
            f" clock, {cpu * share:.0f} of CPU, bar 30 minutes on two cores"
        )
        place = top / "cache"
        measured(
            "substituted fill",
            lambda: fill(repository, captures, workspace, place, given.nodes, substitute=True),
        )
        size = sum(path.stat().st_size for path in place.glob("*.db*"))
        bar = 20 if given.unshared else 8
        print(f"cache: {size / given.nodes / 1000:.2f} kB a node, bar {bar} kB")
        words = ("--captures", str(captures), "--cache", str(place), "--dir", str(repository))
        for title, head in (("none affected", "none"), ("2 % affected", "some")):
            measured(title, command(top / "root", f"main..{head}", *words), bar=BARS[title])
            again = command(top / "root", f"main..{head}", *words)
            measured("the same again", again, bar=BARS["the same again"])


if __name__ == "__main__":
    main()

"""The overhead of localpuppet over bare `puppet apply`, and the duration of small commands.

Each pair runs both in turn, in alternating order, in one run of this script. The output has
medians. The bare command has the same arguments as the supervised one (from `request.json`), except
for the directory of the run. Needs root, Puppet and, for the second catalog, Debian's packages
puppet-module-puppetlabs-{apache,mysql,ntp,haproxy}.

With --warm it measures runs of an agent with `agent.warm: true` (`warm_runs.py`) and the same bare
command; with --cold only runs of `localpuppet apply`, without the table of commands.

    benchmarks/overhead.py [--pairs 15] [--warm | --cold]
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
PYTHON = os.path.realpath(sys.executable)  # a shim on PATH costs 100 ms
VENV = REPOSITORY / ".venv" / "bin"
WARM_RUNS = Path(__file__).with_name("warm_runs.py")
# Ratios to the bare command, by catalog; MiB; and the ratio of a run after a recycle.
COLD_BARS = {"trivial": 0.80, "real": 0.92}
WARM_BARS = {"trivial": 0.22, "real": 0.35}
SERVER_BAR = 192.0  # with the environment server
RECYCLE_BAR = 1.05
DEBIAN_MODULES = Path("/usr/share/puppet/modules")
REAL = ("apache", "mysql", "ntp", "haproxy")
SITE = (REPOSITORY / "tests/data/debian-modules.pp").read_text()


@dataclass(frozen=True)
class Took:
    """Wall and CPU seconds of a command."""

    wall: float
    cpu: float


def timed(command: list[str], env: dict[str, str], wanted: tuple[int, ...]) -> Took:
    """Return the time of `command`; assert its exit code."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    begun = time.perf_counter()
    done = subprocess.run(
        command, env=env, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
    )
    seconds = time.perf_counter() - begun
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode not in wanted:
        raise SystemExit(f"{command[:3]} exited {done.returncode}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Took(seconds, cpu)


def alternate(
    pairs: int, first: Callable[[], Took], second: Callable[[], Took]
) -> tuple[list[Took], list[Took]]:
    """Run both in turn, swapping the order each time; the first round only warms up."""
    first(), second()
    times: tuple[list[Took], list[Took]] = ([], [])
    for pair in range(pairs):
        order = [(0, first), (1, second)] if pair % 2 else [(1, second), (0, first)]
        for index, run in order:
            times[index].append(run())
    return times


def middle(times: list[Took]) -> float:
    """Return the median of wall seconds."""
    return statistics.median(took.wall for took in times)


def make_root(directory: Path, *, real: bool, compiled: bool, warm: bool = False) -> Path:
    """Return a root with a tag of the sample app, or of an app with Debian's modules."""
    name = ("real" if real else "trivial") + ("" if compiled else "-all-read")
    root = directory / (name + ("-warm" if warm else ""))
    for name in ("modules", "enc", "manifests"):
        shutil.copytree(REPOSITORY / name, root / name)
    (root / "puppet" / "var").mkdir(parents=True)
    puppet = {"confdir": "puppet/conf", "vardir": "puppet/var", "compiled_ruby": compiled}
    settings = {"puppet": puppet, "agent": {"warm": warm}}
    (root / "localpuppet.yaml").write_text(json.dumps(settings))
    shutil.copy(REPOSITORY / "input.yaml", root)
    if real:
        app = root / "modules" / "site" / "tags" / "r1"
        (app / "site" / "manifests").mkdir(parents=True)
        (app / "site" / "manifests" / "init.pp").write_text(SITE)
        (app / "manifest.yaml").write_text("modulepath: [vendor/tags/r1]\n")
        shutil.copytree(DEBIAN_MODULES, root / "modules/vendor/tags/r1", symlinks=False)
        (root / "input.yaml").write_text("app: site/tags/r1\nclasses: [site]\n")
    else:
        shutil.copytree(root / "modules/dist/trunk", root / "modules/dist/tags/r1")
        tag = root / "modules" / "foo" / "tags" / "r1"
        (tag / "manifest.yaml").write_text("modulepath: [dist/tags/r1]\n")
        (root / "input.yaml").write_text("app: foo/tags/r1\nclasses: {foo: null, platform: null}\n")
    return root


def peak_memory(command: list[str], env: dict[str, str]) -> float:
    """Return the peak resident memory of the supervisor itself, in MiB."""
    peak = 0
    with subprocess.Popen(
        command, env=env, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        while process.poll() is None:
            try:
                text = Path(f"/proc/{process.pid}/status").read_text()
            except OSError:
                break
            found = [line for line in text.splitlines() if line.startswith("VmHWM")]
            peak = max([peak, *(int(line.split()[1]) for line in found)])
            time.sleep(0.02)
    return peak / 1024


def bare_run(root: Path, directory: Path, env: dict[str, str]) -> Callable[[], Took]:
    """Return a function that runs the command of the newest run without localpuppet.

    Each call uses a new directory. Otherwise Puppet would read the facts of the previous run from
    there, and not run Facter.
    """
    newest = max((root / "var" / "runs").iterdir())
    command: list[str] = json.loads((newest / "request.json").read_text())["command"]

    def run() -> Took:
        own = Path(tempfile.mkdtemp(prefix="bare-", dir=directory))
        return timed([word.replace(str(newest), str(own)) for word in command], env, (0, 2))

    return run


def apply_row(root: Path, directory: Path, pairs: int, options: list[str]) -> str:
    """Return the table's line for one catalog."""
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LOCALPUPPET_ROOT": str(root)}
    ours = [str(VENV / "localpuppet"), "apply", *options]
    timed(ours, env, (0,))
    settle(root)
    bare = bare_run(root, directory, env)
    left, right = alternate(pairs, lambda: timed(ours, env, (0,)), bare)
    both = list(zip(left, right, strict=True))
    wall = statistics.median(a.wall / b.wall for a, b in both)
    cpu = statistics.median(a.cpu / b.cpu for a, b in both)
    memory = peak_memory(ours, env)
    return (
        f"| apply, {root.name} | {middle(left):.3f} s | {middle(right):.3f} s"
        f" | {middle(left) / middle(right):.3f} | {wall:.3f} | {cpu:.3f} | {memory:.1f} MiB |"
    )


class WarmRuns:
    """Runs as the agent of a root starts them: see `warm_runs.py`."""

    def __init__(self, root: Path, env: dict[str, str]) -> None:
        self.memory = 0.0
        self._process = subprocess.Popen(
            [str(VENV / "python"), str(WARM_RUNS), str(root)],
            env=env,
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def run(self, word: str, *, warm: bool = True) -> Took:
        """Do a run, and assert that it was warm or cold."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{word}\n")
        self._process.stdin.flush()
        said = json.loads(self._process.stdout.readline() or "{}")
        if said.get("warm") is not warm:
            raise SystemExit(f"a run {'started cold' if said else 'failed'}: {said}")
        self.memory = max(self.memory, (said["memory"] or 0) / 2**20)
        return Took(said["wall"], said["cpu"])

    def end(self) -> None:
        """End the process that starts runs, and its server."""
        self._process.communicate()


def warm_rows(root: Path, directory: Path, pairs: int, *, real: bool) -> str:
    """Return the lines for one catalog: warm beside bare, and after a recycle beside cold."""
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LOCALPUPPET_ROOT": str(root)}
    word = "noop" if real else "run"
    ours = [str(VENV / "localpuppet"), "apply", *(["--noop"] if real else [])]
    timed(ours, env, (0,))
    settle(root)
    bare = bare_run(root, directory, env)
    runs = WarmRuns(root, env)
    try:
        runs.run(word)
        settle(root)  # it may have read more files, and a new pack ends the server
        left, right = alternate(pairs, lambda: runs.run(word), bare)
        kind = "real" if real else "trivial"
        lines = [_compared(f"warm, {kind}", left, right, WARM_BARS[kind])]
        if not real:
            after, cold = alternate(
                pairs, lambda: runs.run("recycled", warm=False), lambda: timed(ours, env, (0,))
            )
            lines.append(_compared("right after a recycle, to cold", after, cold, RECYCLE_BAR))
    finally:
        runs.end()
    reached = "reached" if runs.memory <= SERVER_BAR else "**missed**"
    lines.append(
        f"| server, {kind} | {runs.memory:.1f} MiB | | | | {SERVER_BAR:g} MiB | {reached} |"
    )
    return "\n".join(lines)


def _compared(name: str, left: list[Took], right: list[Took], bar: float) -> str:
    """Return a line: medians, the median of ratios, the ratio of CPU, the bar."""
    both = list(zip(left, right, strict=True))
    ratio = statistics.median(a.wall / b.wall for a, b in both)
    cpu = statistics.median(a.cpu / b.cpu for a, b in both)
    reached = "reached" if ratio <= bar else "**missed**"
    return (
        f"| {name} | {middle(left):.3f} s | {middle(right):.3f} s | {ratio:.3f}"
        f" | {cpu:.3f} | {bar:.2f} | {reached} |"
    )


def settle(root: Path) -> None:
    """Wait until the Ruby files of the first run are compiled."""
    deadline = time.monotonic() + 60
    while (root / "var" / "cache" / "ruby" / "wanted").exists():
        if time.monotonic() > deadline:
            raise SystemExit("Ruby was not compiled within 60 s")
        time.sleep(0.1)
    time.sleep(2)  # the process removes the list first


def start_row(root: Path, pairs: int, verb: str) -> str:
    """Return the table's line for one small command."""
    env = {"PATH": "/usr/bin:/bin", "LOCALPUPPET_ROOT": str(root)}
    left, right = alternate(
        pairs,
        lambda: timed([str(VENV / "localpuppet"), verb], env, (0,)),
        lambda: timed([PYTHON, "-c", "pass"], env, (0,)),
    )
    ours, python = middle(left) * 1000, middle(right) * 1000
    return f"| {verb} | {ours:.0f} ms | {python:.0f} ms | {ours - python:+.0f} ms |"


def profile(root: Path) -> str:
    """Return the slowest imports of an apply before Puppet's start."""
    env = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LOCALPUPPET_ROOT": str(root)}
    done = subprocess.run(
        [str(VENV / "python"), "-X", "importtime", "-m", "localpuppet", "apply"],
        env={**env, "PYTHONPATH": str(REPOSITORY)},
        cwd="/",
        capture_output=True,
        text=True,
        check=True,
    )
    rows = []
    for line in done.stderr.splitlines():
        parts = line.removeprefix("import time:").split("|")
        if len(parts) == 3 and parts[0].strip().isdigit():
            rows.append((int(parts[0]), parts[2].strip()))
    total = sum(own for own, _ in rows)
    lines = [f"imports of `apply`: {len(rows)} modules, {total / 1000:.0f} ms (measured), dearest:"]
    lines += [f"  {own / 1000:5.1f} ms  {name}" for own, name in sorted(rows, reverse=True)[:12]]
    return "\n".join(lines)


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=15, help="pairs of runs (default 15)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--warm", action="store_true", help="runs from the agent's fork server")
    what.add_argument("--cold", action="store_true", help="runs of localpuppet apply, no verbs")
    arguments = parser.parse_args()
    pairs = arguments.pairs
    real_there = all((DEBIAN_MODULES / module).exists() for module in REAL)
    with tempfile.TemporaryDirectory(prefix="overhead-", dir="/var/tmp") as name:
        directory = Path(name)
        if arguments.warm:
            print("| | localpuppet | peer | median of ratios | of CPU | bar | |")
            print("|---|---|---|---|---|---|---|")
            for catalog in (False, True) if real_there else (False,):
                root = make_root(directory, real=catalog, compiled=True, warm=True)
                print(warm_rows(root, directory, pairs, real=catalog), flush=True)
            return
        print("| | localpuppet | bare | ratio | median of ratios | of CPU | supervisor's peak |")
        print("|---|---|---|---|---|---|---|")
        for compiled in (True,) if arguments.cold else (False, True):
            trivial = make_root(directory, real=False, compiled=compiled)
            print(apply_row(trivial, directory, pairs, []), flush=True)
            if real_there:
                real = make_root(directory, real=True, compiled=compiled)
                print(apply_row(real, directory, pairs, ["--noop"]), flush=True)
            else:
                print("(the catalog of real modules needs Debian's puppet-module-puppetlabs-*)")
        if arguments.cold:
            bars = ", ".join(f"{name} {bar}" for name, bar in COLD_BARS.items())
            print(f"(bars for the median of ratios: {bars})")
            return
        print("\n| | localpuppet | python -c pass | above it |\n|---|---|---|---|")
        for verb in ("status", "enc", "--version"):
            print(start_row(trivial, max(pairs, 21), verb), flush=True)
        print(f"\n{profile(trivial)}")


if __name__ == "__main__":
    main()

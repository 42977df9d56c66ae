"""The cost of a plan of a large site: seconds and memory to read, order and show it.

The sites are generated: applications with a database, eight web servers and a load balancer each,
on shared nodes, so that a node has components of several applications. In the second kind, every
database node also has a web server of another application, and all nodes run twice or more. Each
figure is of a new process, `rollout plan` as a user calls it, with output to /dev/null. The CPU
time is shown because other work on the machine lengthens only the wall time.

The comparison is the minimum for any reader of the file: Python's `json.loads` in a separate
process.

    benchmarks/orchestrate.py [--components 100000 200000] [--rounds 3]
"""

import argparse
import json
import multiprocessing
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parent.parent
EACH = 10  # components of an application
JSON_LOADS = "import json, sys; json.loads(open(sys.argv[1], 'rb').read())"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """The cost of a process.

    Attributes:
        wall: Seconds by the clock.
        cpu: Seconds of the CPU.
        memory: Its largest resident set, MiB.
    """

    wall: float
    cpu: float
    memory: float


def site(components: int, *, tangled: bool) -> dict[str, Any]:
    """Return an environment graph.

    Args:
        components: The number of components.
        tangled: Whether nodes depend on each other both ways.
    """
    count = components // EACH
    databases, webs, balancers = max(count // 2, 1), max(count * 2, 1), max(count // 5, 1)
    applications = {}
    for number in range(count):
        name = f"app{number}"
        parts: dict[str, Any] = {
            f"Lamp::Mysql[{name}]": _part(f"db{number % databases}", gives=[f"Sql[{name}]"]),
            f"Lamp::Balancer[{name}]": _part(
                f"lb{number % balancers}", needs=[f"Http[{name}-{web}]" for web in range(EACH - 2)]
            ),
        }
        for web in range(EACH - 2):
            node = f"web{(number * 7 + web) % webs}"
            if tangled and web == 0:
                node = f"db{(number + 1) % databases}"
            parts[f"Lamp::Webapp[{name}-{web}]"] = _part(
                node, gives=[f"Http[{name}-{web}]"], needs=[f"Sql[{name}]"]
            )
        applications[f"Lamp[{name}]"] = parts
    return {"environment": "production", "applications": applications, "code_id": None}


def make(path: Path, components: int, tangled: bool) -> None:
    """Write an environment graph to a file."""
    path.write_text(json.dumps(site(components, tangled=tangled)))


def _part(node: str, *, gives: list[str] | None = None, needs: list[str] | None = None) -> Any:  # noqa: ANN401
    return {"produces": gives or [], "consumes": needs or [], "node": f"{node}.example.com"}


def measured(argv: list[str]) -> Cost:
    """Run a process and return its cost."""
    start = time.perf_counter()
    with Path(os.devnull).open("wb") as nowhere:
        process = subprocess.Popen(argv, stdout=nowhere, stderr=nowhere, cwd=REPOSITORY)
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise SystemExit(f"{argv} ended with {process.returncode}")
    return Cost(
        wall=time.perf_counter() - start,
        cpu=used.ru_utime + used.ru_stime,
        memory=used.ru_maxrss / 1024,
    )


def median(argv: list[str], rounds: int) -> Cost:
    """Return the medians of some rounds."""
    costs = [measured(argv) for _ in range(rounds)]
    return Cost(
        wall=statistics.median(cost.wall for cost in costs),
        cpu=statistics.median(cost.cpu for cost in costs),
        memory=max(cost.memory for cost in costs),
    )


def rows(directory: Path, sizes: list[int], rounds: int) -> Iterator[str]:
    """Yield the lines of the table."""
    yield "| site | components | | clock | CPU | memory |\n|---|---|---|---|---|---|"
    for tangled in (False, True):
        kind = "nodes run more than once" if tangled else "each node runs once"
        for size in sizes:
            path = directory / "site.json"
            # A separate process makes it, because a child's peak memory starts with its parent's.
            maker = multiprocessing.get_context("spawn").Process(
                target=make, args=(path, size, tangled)
            )
            maker.start()
            maker.join()
            plan = [sys.executable, "-m", "localpuppet", "rollout", "plan", "--site", str(path)]
            for name, argv in (
                ("json.loads", [sys.executable, "-c", JSON_LOADS, str(path)]),
                ("plan", [*plan, "--text"]),
                ("plan --json", [*plan, "--json"]),
                ("plan --svg", [*plan, "--svg"]),
            ):
                cost = median(argv, rounds)
                yield (
                    f"| {kind} | {size} | {name} | {cost.wall:.2f} s | {cost.cpu:.2f} s |"
                    f" {cost.memory:.0f} MiB |"
                )


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--components", type=int, nargs="+", default=[100_000, 200_000])
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        for row in rows(Path(name), options.components, options.rounds):
            print(row, flush=True)


if __name__ == "__main__":
    main()

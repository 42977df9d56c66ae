"""The time from a notify in Puppet on one node to Puppet's first resource on another.

The time starts in the `set` of the resource that notifies a `trigger`, and ends when Puppet on the
other node evaluates the first resource of its catalog. One of two nodes with the same catalog has
`agent.warm`; the benchmark triggers them in turn. Their resources are in the desired state, so a
fork server continues from round to round. The output compares the result with the bar. Needs root,
Puppet, and the engine's server.

    benchmarks/first_resource.py [--engine sqlite|nats-new|nats|etcd] [--rounds R]
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # for the servers of the tests

from engines import Store, store
from real_agents import Node, wait_until

ENGINES = ("sqlite", "nats-new", "nats", "etcd")
NAMES = {"cold": "cold.example.com", "warm": "warm.example.com"}
BAR = 0.6  # seconds, warm, of a trivial catalog
SETTLE = 2.0
WARMING = 3  # rounds: the first ones store compiled Ruby, which ends a server
DISK = Path("/var/tmp")  # noqa: S108 - a disk: /tmp may be memory


def times(at: Store, directory: Path, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each round after the warm-up rounds."""
    sent = directory / "a.example.com" / "sent"
    first = Node(
        directory,
        "a.example.com",
        at.settings,
        site=f"""
          if $facts['told'] {{
            stamp {{ '{sent}': when => now }}
            ~> trigger {{ 'other': hosts => ["${{facts['told']}}.example.com"] }}
          }}""",
    )
    others = {
        form: Node(
            directory,
            name,
            {**at.settings, "agent": {"run_interval": False, "warm": form == "warm"}},
            site=f"seen {{ '{directory / name / 'seen'}': when => now }}",
        )
        for form, name in NAMES.items()
    }
    nodes = [first, *others.values()]
    for one in nodes:
        for other in nodes:
            if one is not other:
                one.trust(other)
    found: dict[str, list[float]] = {form: [] for form in others}
    try:
        for one in nodes:
            one.apply()  # asks Puppet about itself
            one.start()
        fork_server = others["warm"].root / "var" / "agent" / "fork_server.sock"
        wait_until(fork_server.exists, "no fork server")
        for _ in range(rounds + WARMING):
            for form, node in others.items():
                found[form].append(_round(first, node, form, sent))
    finally:
        for one in nodes:
            one.stop()
    for form, node in others.items():
        told = {run.get("warm", False) for run in node.runs[-rounds:]}
        if told != {form == "warm"}:
            raise SystemExit(f"{node.name}: runs were not all {form}: {node.runs[-1]}")
    return {form: one[WARMING:] for form, one in found.items()}


def _round(first: Node, node: Node, form: str, sent: Path) -> float:
    """Return the seconds of one round."""
    time.sleep(SETTLE)
    seen = node.root / "seen"
    seen.unlink(missing_ok=True)
    first.apply({"FACTER_told": form})
    wait_until(lambda: seen.exists() and bool(seen.read_text()), f"{node.name}: no run")
    taken = (int(seen.read_text()) - int(sent.read_text())) / 1e9
    node.rest()
    return taken


def main() -> None:
    """Print the table and the bar."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engine", default="nats-new", choices=ENGINES, help="[nats-new]")
    parser.add_argument("--rounds", type=int, default=7, help="of each [7]")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(prefix="first-", dir=DISK) as directory,
        store(options.engine, Path(directory)) as at,
    ):
        found = times(at, Path(directory), options.rounds)
    print("| from a notify to the first resource | median | least | most |\n|---|---|---|---|")
    for form, one in found.items():
        median, least, most = statistics.median(one), min(one), max(one)
        print(f"| {options.engine}, {form} | {median:.3f} s | {least:.3f} s | {most:.3f} s |")
    warm = statistics.median(found["warm"])
    word = "reached" if warm <= BAR else "MISSED"
    print(f"\n{word}: warm {warm:.3f} s (bar {BAR:g} s)")


if __name__ == "__main__":
    main()

"""Sealed values of a large fleet, against bars.

10,000 nodes, 2,000 values in 40 groups, 30,000 memberships: seal all, change one value, let a node
join three groups, check. Then 100 nodes with 500 values: each disk opens exactly the values of its
rules. Prints CPU and wall times, medians of alternating repetitions.

    benchmarks/sealed.py [--repeat 3]
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import cycle, islice
from pathlib import Path

from localpuppet.base.errors import InvalidInputError
from localpuppet.node.sealed.age import AgeIdentity
from localpuppet.node.sealed.authoring import Keys, new_group, set_value, with_keys
from localpuppet.node.sealed.sealed_files import ValueType
from localpuppet.node.sealed.sealed_findings import check_sealed
from localpuppet.node.sealed.tree import PREFIX, SealedOpener, SealedTree
from localpuppet.node.sealed.trust import PastSealed

NODES, VALUES, GROUPS, MEMBERSHIPS = 10_000, 2_000, 40, 30_000
ALICE, BOB = AgeIdentity.generate(), AgeIdentity.generate()
OPERATORS: Keys = {"alice": (ALICE.recipient,), "bob": (BOB.recipient,)}


def seal_all(root: Path, members: Sequence[Keys], values: int) -> None:
    """Make all groups and values of a release."""
    groups = [
        new_group(f"role=r{number:02}", members=keys, operators=OPERATORS)
        for number, keys in enumerate(members)
    ]
    for group in groups:
        write(root, f"groups/{group.name}.yaml", group.to_bytes())
    for number, group in enumerate(islice(cycle(groups), values)):
        path = f"common/profile{number}::password"
        value = set_value(0, group, path, b"correct horse %d" % number, ValueType.STRING)
        write(root, f"values/{path}.yaml", value.to_bytes())


def write(root: Path, name: str, data: bytes) -> None:
    """Write a file below `sealed`."""
    path = root / PREFIX / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def change_one(root: Path) -> None:
    """Seal one value again, as `sealed set` does."""
    tree = SealedTree.on_disk(root)
    group = tree.group("role=r07")
    assert group is not None
    path = "common/profile7::password"
    before = tree.value(path)
    assert before is not None
    value = set_value(before.number, group, path, b"other", ValueType.STRING)
    write(root, f"values/{value.path}.yaml", value.to_bytes())


def join_three(root: Path) -> None:
    """Add a node to three groups, as `sealed reseal` does."""
    tree, key = SealedTree.on_disk(root), AgeIdentity.generate().recipient
    for name in ("role=r01", "role=r02", "role=r03"):
        group = tree.group(name)
        assert group is not None
        identity = group.opened_by([ALICE])
        assert identity is not None
        after = with_keys(group, identity, members={"new.example.com": (key,)})
        write(root, f"groups/{name}.yaml", after.to_bytes())


def check(root: Path, wanted: dict[str, Keys]) -> None:
    """Check all, with an inventory and a release of the same content."""
    findings = check_sealed(
        SealedTree.on_disk(root),
        released=SealedTree.on_disk(root),
        past=PastSealed(),
        wanted=wanted,
        authors={},
        data=(),
        is_signed=True,
    )
    assert findings.problems == (), findings.problems[:3]


def lines(root: Path) -> dict[str, list[bytes]]:
    """Return the lines of all files."""
    files = (path for path in (root / PREFIX).rglob("*.yaml"))
    return {str(path): path.read_bytes().splitlines() for path in files}


def timed(work: Callable[[], None]) -> tuple[float, float]:
    """Return CPU and wall seconds."""
    cpu, wall = time.process_time(), time.perf_counter()
    work()
    return time.process_time() - cpu, time.perf_counter() - wall


def shared(nodes: Sequence[tuple[str, AgeIdentity]], groups: int, count: int) -> Iterator[Keys]:
    """Yield the members of each group: all nodes in turn."""
    turns = cycle(nodes)
    for _ in range(groups):
        some = islice(turns, count // groups)
        yield {name: (key.recipient,) for name, key in some}


def large(repeat: int) -> None:
    """Print the times of a large fleet."""
    nodes = [(f"node{n:05}.example.com", AgeIdentity.generate()) for n in range(NODES)]
    members = [*shared(nodes, GROUPS, MEMBERSHIPS)]
    wanted = {f"role=r{number:02}": keys for number, keys in enumerate(members)}
    times: dict[str, list[tuple[float, float]]] = {}
    for _ in range(repeat):
        with tempfile.TemporaryDirectory() as directory:
            root = Path(directory)
            steps: dict[str, Callable[[], None]] = {
                "seal all (6 s)": partial(seal_all, root, members, VALUES),
                "one change (0.5 s)": partial(change_one, root),
                "a node joins 3 groups (1 s)": partial(join_three, root),
                "check (3 s)": partial(check, root, wanted),
            }
            for name, work in steps.items():
                before = lines(root)
                times.setdefault(name, []).append(timed(work))
                if name.startswith(("one", "a node")):
                    report_changes(name, before, lines(root))
            size = sum(path.stat().st_size for path in (root / PREFIX).rglob("*.yaml"))
    for name, measured in times.items():
        cpu, wall = (statistics.median(column) for column in zip(*measured, strict=True))
        print(f"{name:30} {cpu:6.2f} s CPU  {wall:6.2f} s wall")
    print(f"{'files (20 MB)':30} {size / 1e6:6.1f} MB")


def report_changes(
    name: str, before: dict[str, list[bytes]], after: dict[str, list[bytes]]
) -> None:
    """Print how many files and lines a step changed."""
    changed = [path for path, text in after.items() if text != before.get(path)]
    new = sum(len({*after[path]} - {*before.get(path, [])}) for path in changed)
    print(f"  {name}: {len(changed)} changed files, {new} new lines")


def each_disk() -> None:
    """Check that each of 100 nodes opens exactly the values of its rules, of 500."""
    nodes = [(f"node{n:03}.example.com", AgeIdentity.generate()) for n in range(100)]
    members = [*shared(nodes, 20, 300)]
    with tempfile.TemporaryDirectory() as directory:
        seal_all(Path(directory), members, 500)
        tree = SealedTree.on_disk(Path(directory))
        opened = wrong = 0
        for name, key in nodes:
            opener = SealedOpener(tree, [key])
            for value in tree.values():
                allowed = name in members[int(value.group.removeprefix("role=r"))]
                try:
                    opener.content(value)
                    opens = True
                except InvalidInputError:
                    opens = False
                opened += opens
                wrong += opens != allowed
    print(f"100 nodes × 500 values: {opened} opened as their rules say, {wrong} wrong")
    assert wrong == 0


def main() -> None:
    """Run all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=3)
    large(parser.parse_args().repeat)
    each_disk()


if __name__ == "__main__":
    main()

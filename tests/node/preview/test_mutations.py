"""Mutations of control repositories: a preview says what fresh compiles of every node say.

The suite has a sample. `scripts/slow` has more, and, if `PREVIEW_REPOSITORIES` names a directory of
control repositories (`NAME`, with captures in `NAME-nodes`), 30 mutations of each.
"""

import os
import random
from pathlib import Path

import pytest

from tests.rigs.long import LONG
from tests.rigs.node import Node
from tests.rigs.preview_mutations import MutationProof, summary

DATA = Path(__file__).parents[2] / "data" / "preview"
OTHERS = os.environ.get("PREVIEW_REPOSITORIES", "")
# The part of all compiles that may be repeated with the same result.
MAX_NEEDLESS = 0.05


def repositories() -> list[Path]:
    """Return the control repositories beside those of the suite."""
    if not OTHERS:
        return []
    return [path for path in sorted(Path(OTHERS).iterdir()) if Path(f"{path}-nodes").is_dir()]


@pytest.mark.parametrize(
    ("repository", "seed", "count"),
    [
        (DATA / "shop", 28, 30),
        (DATA / "works", 28, 30),
        *(
            pytest.param(DATA / name, seed, 60, marks=LONG)
            for name in ("shop", "works")
            for seed in range(4)
        ),
        *(pytest.param(path, 28, 30, marks=LONG) for path in repositories()),
    ],
    ids=lambda value: value.name if isinstance(value, Path) else str(value),
)
def test_no_effect_of_a_mutation_is_missed(
    node: Node, tmp_path: Path, repository: Path, seed: int, count: int
) -> None:
    nodes = Path(f"{repository}-nodes")
    with MutationProof.open(repository, nodes, tmp_path / "proof", root=node.root) as proof:
        steps = [proof.step(random.Random(seed * 1000 + number)) for number in range(count)]  # noqa: S311
    assert [(str(step.mutation), step.missed) for step in steps if step.missed] == []
    compiles = sum(step.nodes for step in steps)
    needless = sum(len(step.needless) for step in steps)
    assert needless <= MAX_NEEDLESS * compiles, summary(steps)
    assert sum(len(step.changed) for step in steps) > count / 4

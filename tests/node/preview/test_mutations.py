"""Mutations of control repositories: a preview equals fresh compiles of every node.

The suite runs a sample. `scripts/slow` runs more. If `PREVIEW_REPOSITORIES` names a directory of
control repositories (`NAME`, with captures in `NAME-nodes`), it also runs 30 mutations of each.
"""

import os
import random
from pathlib import Path

import pytest

from tests.rigs.long import LONG
from tests.rigs.node import Node
from tests.rigs.preview_mutations import MutationProof

DATA = Path(__file__).parents[2] / "data" / "preview"
OTHERS = os.environ.get("PREVIEW_REPOSITORIES", "")
# The share of all compiles that may be repeated with the same result. Each node of these small
# repositories uses most of the code, so that a change without effect concerns most nodes.
MAX_NEEDLESS = 0.3
# The share of mutations that change at least a catalog: with fewer, a test would show little.
MIN_EFFECT = 1 / 6

pytestmark = pytest.mark.puppet


def repositories() -> list[Path]:
    if not OTHERS:
        return []
    return [path for path in sorted(Path(OTHERS).iterdir()) if Path(f"{path}-nodes").is_dir()]


@pytest.mark.parametrize(
    ("repository", "seed", "steps", "mutations"),
    [
        (DATA / "shop", 28, 4, 3),
        pytest.param(DATA / "works", 28, 4, 3, marks=LONG),
        *(
            pytest.param(DATA / name, seed, 60, 1, marks=LONG)
            for name in ("shop", "works")
            for seed in range(4)
        ),
        *(pytest.param(path, 28, 30, 1, marks=LONG) for path in repositories()),
    ],
    ids=lambda value: value.name if isinstance(value, Path) else str(value),
)
def test_a_preview_shows_each_effect_of_a_mutation(
    node: Node, tmp_path: Path, repository: Path, seed: int, steps: int, mutations: int
) -> None:
    nodes = Path(f"{repository}-nodes")
    done = []
    with MutationProof.open(repository, nodes, tmp_path / "proof", root=node.root) as proof:
        for number in range(steps):
            chance = random.Random(seed * 1000 + number)  # noqa: S311
            done.append(proof.step(chance, count=mutations))
    missed = [(*map(str, step.mutations), step.missed) for step in done if step.missed]
    assert missed == []
    if mutations == 1:
        needless = sum(len(step.needless) for step in done)
        assert needless <= MAX_NEEDLESS * sum(step.nodes for step in done), done
    assert sum(len(step.changed) for step in done) > steps * MIN_EFFECT, done

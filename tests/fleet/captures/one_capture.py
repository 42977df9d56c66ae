"""Keeps a capture, or collects it: python -m tests.fleet.captures.one_capture DIR keep 1."""

import asyncio
import sys
from pathlib import Path

from localpuppet.base.errors import StateError
from localpuppet.fleet.captures import CaptureKeeper, collect_captures
from tests.fleet.captures.test_collecting import LAX, WEB, answering, kept


def main(directory: Path, step: str, number: int) -> None:
    """Give the node a run with this fact `number`, or collect its capture."""
    if step == "keep":
        kept(directory, {"number": number})
        return
    nodes = answering({WEB: CaptureKeeper(directory / "state", LAX)})
    problems = asyncio.run(
        collect_captures(nodes, [WEB], directory / "nodes", patience=1, progress=lambda *_: None)
    )
    if problems:
        sys.exit(problems[WEB])


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
    except StateError as error:
        sys.exit(str(error))

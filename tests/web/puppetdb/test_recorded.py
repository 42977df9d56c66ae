"""The API's answers equal those that a real PuppetDB gave about the same simulated nodes.

`tests/data/puppetdb/answers.jsonl` has the short answers that `benchmarks/puppetdb.py --record`
wrote; the program also has the reasons for what differs.
"""

import subprocess
import sys
from pathlib import Path

from tests.rigs.node import PATIENCE

TOP = Path(__file__).parents[3]
ANSWERS = TOP / "tests" / "data" / "puppetdb" / "answers.jsonl"


def test_answers_equal_those_of_a_real_puppetdb() -> None:
    done = subprocess.run(
        [sys.executable, str(TOP / "benchmarks" / "puppetdb.py"), "--recorded", str(ANSWERS)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith(" 0 unexpected\n")

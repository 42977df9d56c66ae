"""The files that a reader of one `localpuppet apply` of a notify passes, and how often they change.

A node without a bus applies a release for the second time. A file counts if one of its functions is
called, not if it is only imported. A change of file is a call into another file than the call
before; the rounds of the loop that waits for Puppet count once, because their number depends on the
machine. Needs Puppet.

    benchmarks/call_path.py [--files]
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY))  # for the node of the tests

from tests.rigs.node import Node  # noqa: E402

TRACED = """
import json, sys
import localpuppet
from localpuppet.main import main

top = localpuppet.__path__[0] + "/"
files, functions, rounds = {}, set(), []
importing, changes, last = 0, 0, ""

def note(frame, event, _argument):
    global importing, changes, last
    code = frame.f_code
    if not code.co_filename.startswith(top) or event not in ("call", "return"):
        return
    if code.co_name == "<module>":
        importing += 1 if event == "call" else -1
    if importing or event == "return":
        return
    name = code.co_filename.removeprefix(top)
    if code.co_qualname == "SystemChild.wait":
        rounds.append(changes)
    files[name] = files.get(name, 0) + 1
    functions.add((name, code.co_qualname))
    changes += name != last
    last = name

sys.setprofile(note)
code = main(["--root", sys.argv[1], "apply"])
sys.setprofile(None)
loop = rounds[-1] - rounds[0] if rounds else 0
counts = {"files": len(files), "changes of file": changes - loop, "functions": len(functions),
          "modules": sum(name.startswith("localpuppet") for name in sys.modules)}
print(json.dumps({"code": code, "counts": counts, "calls": files}), file=sys.stderr)
"""


def main() -> None:
    """Trace one run, and print the counts."""
    parser = argparse.ArgumentParser(description="Counts the files of one apply.")
    parser.add_argument("--files", action="store_true", help="list the files with their calls")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        node = Node(Path(directory))
        node.settings()
        node.app("notify { 'x': }")
        node.run("apply")
        command = [sys.executable, "-c", TRACED, str(node.root)]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True)
    traced = json.loads(done.stderr.splitlines()[-1])
    if traced["code"] != 0:
        sys.exit(done.stdout)
    for name, count in traced["counts"].items():
        print(f"{name:<16} {count:>5}")
    if given.files:
        for name, calls in sorted(traced["calls"].items()):
            print(f"{calls:>6} {name}")


if __name__ == "__main__":
    main()

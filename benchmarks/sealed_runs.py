"""What 50 sealed values cost a run, beside 50 values in YAML, and what one lookup costs.

    python benchmarks/sealed_runs.py DIRECTORY [RUNS]

Runs alternate: without a directory `sealed`, with an unused one, and with 50 values that the
catalog looks up and writes to files. It prints the median of CPU time, of the command with its
children.
"""

import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from tests.rigs.node import COMMAND, REPOSITORY, make_node
from tests.rigs.sealed import Sealing

VALUES = 50
TIMED = """
Puppet::Functions.create_function(:'app::timed') do
  dispatch(:timed) { param 'Array[String]', :keys }
  def timed(keys)
    times = keys.map do |key|
      start = Process.clock_gettime(Process::CLOCK_MONOTONIC)
      call_function('lookup', key)
      Process.clock_gettime(Process::CLOCK_MONOTONIC) - start
    end
    File.write('@FILE@', ([times.first] + times.drop(1).sort).map { |time| time * 1000 }.join(' '))
    nil
  end
end
"""


def cpu(root: Path) -> float:
    """Run the node once; return the CPU time of the command and its children, in milliseconds."""
    env = {"PATH": os.environ["PATH"], "LOCALPUPPET_ROOT": str(root), "PYTHONPATH": str(REPOSITORY)}
    process = subprocess.Popen(
        [*COMMAND, "apply"], env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    _, status, usage = os.wait4(process.pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    return 1000 * (usage.ru_utime + usage.ru_stime)


def main(directory: Path, runs: int) -> None:
    """Make the nodes, and print what their runs cost."""
    shutil.rmtree(directory, ignore_errors=True)
    roots = {}
    for form in ("none", "unused", "sealed"):
        root = roots[form] = directory / form
        root.mkdir(parents=True)
        node = make_node(root, None)
        sealing = Sealing.on(node)
        key = "s" if form == "sealed" else "y"
        for number in range(VALUES):
            if form != "none":
                sealing.set(f"common/s{number}", f"the secret text number {number}")
        values = "".join(f"y{number}: the clear text number {number}\n" for number in range(VALUES))
        (sealing.directory / "data").mkdir()
        (sealing.directory / "data/common.yaml").write_text(values)
        function = sealing.directory / "app/lib/puppet/functions/app/timed.rb"
        function.parent.mkdir(parents=True)
        function.write_text(TIMED.replace("@FILE@", str(root / "times")))
        names = ", ".join(f"'{key}{number}'" for number in range(VALUES))
        sealing.code(
            f"app::timed([{names}])\n[{names}].each |$key| {{\n"
            f'  file {{ "{root}/${{key}}": content => lookup($key) }}\n}}'
        )
        for _ in range(3):  # compiled Ruby, and the files
            cpu(root)
            while node.apart():
                time.sleep(0.1)
    times: dict[str, list[float]] = {form: [] for form in roots}
    for _ in range(runs):
        for form, root in roots.items():
            times[form].append(cpu(root))
    for form, values_of in times.items():
        lookups = [float(word) for word in (roots[form] / "times").read_text().split()]
        print(
            f"{form:7} {statistics.median(values_of):7.1f} ms CPU, least {min(values_of):7.1f};"
            f" lookups: first {lookups[0]:.2f} ms, median {statistics.median(lookups[1:]):.3f} ms"
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 20)

"""The heap of a process with threads."""

import subprocess
import sys

import pytest

# A heap of a thread is 64 MiB of address space, of which little is in use.
PROGRAM = """
import threading, zlib
from localpuppet.base.machine.processes import share_heap
if {shares}:
    share_heap()
stay, there = threading.Event(), threading.Barrier(4)
def use():
    packed = zlib.compressobj()
    there.wait()
    stay.wait()
    packed.flush()
for _ in range(3):
    threading.Thread(target=use).start()
there.wait()
heaps = 0
for line in open("/proc/self/maps"):
    begin, end = (int(part, 16) for part in line.split()[0].split("-"))
    heaps += line.split()[1] == "---p" and 2**25 < end - begin < 2**26
stay.set()
print(heaps)
"""


@pytest.mark.parametrize("shares", [True, False])
def test_threads_have_heaps_of_their_own_unless_they_share(shares: bool) -> None:
    program = PROGRAM.format(shares=shares)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stderr == ""
    assert (int(done.stdout) == 0) == shares

"""Several processes share a cache; after SIGKILL or a full disk its results are complete."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from localpuppet.base.errors import StateError
from localpuppet.node.preview.cache import PreviewCache
from localpuppet.node.puppet.catalog import CatalogResource
from tests.doubles.compile_engine import RecordedRelease, resource, write_capture
from tests.node.preview.rig import PreviewRig, write_release

NODES = 12


def program(view: RecordedRelease) -> Iterator[CatalogResource]:
    for number in range(20):
        yield resource("File", f"/etc/{number}", content=view.read("site.pp"))
    yield resource("Notify", "own", message=[view.request.node, view.lookup("data.yaml", "k")])


def make_rig(directory: Path) -> PreviewRig:
    rig = PreviewRig(directory, program)
    for number in range(NODES):
        write_capture(rig.nodes, f"n{number}.example.com", {"role": "web"})
    write_release(directory / "base", {"site.pp": "one", "data.yaml": "k: 1\n"})
    write_release(directory / "head", {"site.pp": "two", "data.yaml": "k: 2\n"})
    return rig


def start(directory: Path, kill_after: int = 0) -> "subprocess.Popen[bytes]":
    """Start a preview in a process; it kills itself at its Nth statement that writes."""
    words = [sys.executable, "-m", "tests.node.preview.test_cache_processes"]
    return subprocess.Popen([*words, str(directory), str(kill_after)])


def kill_at(number: int) -> None:
    """Kill this process at the Nth statement of SQLite that writes."""
    count = 0
    connect = PreviewCache.__init__

    def trace(statement: str) -> None:
        nonlocal count
        if statement.split(" ", 1)[0] in ("INSERT", "UPDATE", "DELETE", "COMMIT", "CREATE"):
            count += 1
            if count == number:
                os.kill(os.getpid(), signal.SIGKILL)

    def traced(self: PreviewCache, directory: Path, **words: object) -> None:
        connect(self, directory, **words)  # type: ignore[arg-type]
        with self._file.reading() as connection:
            connection.set_trace_callback(trace)

    PreviewCache.__init__ = traced  # type: ignore[method-assign]


def test_a_killed_preview_leaves_complete_results(tmp_path: Path) -> None:
    expected = make_rig(tmp_path / "whole").shown()
    rig = make_rig(tmp_path / "killed")
    ended: set[int] = set()
    number = 1
    while len(ended) < 2 and number < 4000:
        ended.add(start(rig.directory, number).wait(timeout=300))
        assert show_but_keep(rig) == expected
        number = number * 4 + 3
    assert ended == {-signal.SIGKILL, 0}


def show_but_keep(rig: PreviewRig) -> dict[str, object]:
    """Return the result with a copy of the cache, so that the next process has to write again."""
    other = PreviewRig(rig.directory.with_name("copy"), program)
    subprocess.run(["rm", "-rf", str(other.directory)], check=True)
    subprocess.run(["cp", "-a", str(rig.directory), str(other.directory)], check=True)
    return other.shown()


def test_several_previews_at_a_time(tmp_path: Path) -> None:
    expected = make_rig(tmp_path / "whole").shown()
    rig = make_rig(tmp_path / "shared")
    processes = [start(rig.directory) for _ in range(3)]
    assert [process.wait(timeout=300) for process in processes] == [0, 0, 0]
    assert rig.shown() == expected
    assert rig.engine.compiled == []


def test_a_full_disk_is_an_error_and_leaves_complete_results(tmp_path: Path) -> None:
    expected = make_rig(tmp_path / "whole").shown()
    rig = make_rig(tmp_path / "small")
    cache = rig.directory / "cache"
    cache.mkdir(mode=0o700)
    for size in (64, 100, 140):
        words = ["mount", "-t", "tmpfs", "-o", f"size={size}k,mode=0700", "tmpfs", str(cache)]
        subprocess.run(words, check=True)
        try:
            with pytest.raises(StateError, match=r"full|No space"):
                rig.shown()
            subprocess.run(["mount", "-o", "remount,size=20m", str(cache)], check=True)
            assert rig.shown() == expected
        finally:
            subprocess.run(["umount", str(cache)], check=True)


if __name__ == "__main__":
    if int(sys.argv[2]):
        kill_at(int(sys.argv[2]))
    PreviewRig(Path(sys.argv[1]), program).shown()

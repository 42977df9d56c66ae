"""Compiled Ruby, kept from run to run: see `base/share/compiled_ruby.rb`, which a run loads.

Owns: when it is made. The run says what it missed; it is made once the run has ended, by a process
of its own, so that no run waits for it.
"""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

from localpuppet.base.errors import LocalpuppetError
from localpuppet.node.puppet.installation import find_ruby

# What it may take on the disk, with what takes its place; bytes. `compile_ruby.rb` keeps to half.
MOST = 128 * 1024 * 1024


class CompiledRuby:
    """What is kept on this node.

    Args:
        directory: Where; a run makes it when it first has something to say.
        script: The Ruby file that compiles.
        command: Returns Puppet's command, whose interpreter is to compile.
        start: Starts a command that goes on by itself, in the environment of runs.
        path: The directories in which an interpreter may be, as `PATH` has them.
        min_free: Bytes that must stay free on the disk, or nothing is compiled.

    Attributes:
        directory: See above.
    """

    def __init__(
        self,
        directory: Path,
        *,
        script: Path,
        command: Callable[[], Path],
        start: Callable[[Sequence[str]], None],
        path: str,
        min_free: int,
    ) -> None:
        self.directory = directory
        self._script = script
        self._command = command
        self._start = start
        self._path = path
        self._min_free = min_free

    def after_run(self, note: Callable[[str], None]) -> None:
        """Have compiled what a run missed, if it did.

        Args:
            note: Takes what keeps it from being compiled.
        """
        if not (self.directory / "wanted").exists():
            return
        if shutil.disk_usage(self.directory).free < self._min_free + MOST:
            return
        try:
            ruby = find_ruby(self._command(), self._path)
            if ruby is not None:
                self._start([str(ruby), str(self._script), str(self.directory)])
        except LocalpuppetError as error:
            note(f"Ruby is not compiled for the next run: {error}")

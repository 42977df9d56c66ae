"""Keeps compiled Ruby from run to run: see `base/share/compiled_ruby.rb`, which a run loads.

A run records which files lacked compiled code. A separate process compiles them after the run, so
that no run waits for it.
"""

import shutil
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

from localpuppet.base.errors import LocalpuppetError
from localpuppet.node.puppet.installation import find_ruby

# What it may take on the disk, with what takes its place; bytes. `compile_ruby.rb` keeps to half.
MOST = 128 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class CompiledRuby:
    """The compiled Ruby on this node.

    Attributes:
        directory: Its directory; the first run that lacks compiled code creates it.
        script: The Ruby file that compiles.
        command: Returns Puppet's command, whose interpreter compiles.
        start: Starts a detached command in the environment of runs.
        path: The directories to search for an interpreter, like `PATH`.
        min_free: Bytes that must stay free on the disk.

    Attributes:
        directory: See above.
    """

    directory: Path
    _: KW_ONLY
    script: Path
    command: Callable[[], Path]
    start: Callable[[Sequence[str]], None]
    path: str
    min_free: int

    def after_run(self, note: Callable[[str], None]) -> None:
        """Start compiling the files that lacked compiled code, if any.

        Args:
            note: Takes the reason if compiling is impossible.
        """
        if not (self.directory / "wanted").exists():
            return
        if shutil.disk_usage(self.directory).free < self.min_free + MOST:
            return
        try:
            ruby = find_ruby(self.command(), self.path)
            if ruby is not None:
                self.start([str(ruby), str(self.script), str(self.directory)])
        except LocalpuppetError as error:
            note(f"could not compile Ruby for the next run: {error}")

"""Compiled Ruby, kept from run to run: see `share/compiled_ruby.rb`, which a run loads.

Owns: when it is made. The run says what it missed; it is made once the run has ended, by a process
of its own, so that no run waits for it.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from localpuppet.errors import LocalpuppetError
from localpuppet.machine.processes import start_apart
from localpuppet.puppet.installation import find_ruby


class CompiledRuby:
    """What is kept on this node.

    Args:
        directory: Where; a run makes it when it first has something to say.
        script: The Ruby file that compiles.
        command: Returns Puppet's command, whose interpreter is to compile.
        env: The environment to compile in: that of runs.

    Attributes:
        directory: See above.
    """

    def __init__(
        self,
        directory: Path,
        *,
        script: Path,
        command: Callable[[], Path],
        env: Mapping[str, str],
    ) -> None:
        self.directory = directory
        self._script = script
        self._command = command
        self._env = env

    def after_run(self, note: Callable[[str], None]) -> None:
        """Have compiled what a run missed, if it did.

        Args:
            note: Takes what keeps it from being compiled.
        """
        if not (self.directory / "wanted").exists():
            return
        try:
            ruby = find_ruby(self._command(), self._env.get("PATH", ""))
            if ruby is not None:
                start_apart([str(ruby), str(self._script), str(self.directory)], env=self._env)
        except LocalpuppetError as error:
            note(f"Ruby is not compiled for the next run: {error}")

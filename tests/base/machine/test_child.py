"""Process groups of children."""

import os
import signal
import subprocess

import pytest

from localpuppet.base.machine.child import signal_group


def test_a_group_that_has_ended_may_be_signalled() -> None:
    """A command may end by itself just when its time is over."""
    with subprocess.Popen(["sleep", "1000"], start_new_session=True) as child:
        signal_group(child.pid, signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    with pytest.raises(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    signal_group(child.pid, signal.SIGKILL)

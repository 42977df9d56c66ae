"""What agents run in these tests instead of Puppet: it logs its start, what it sent, and its end.

It writes to the agent's own standard error, so that one file holds what happened on a node in the
order in which it happened. What else it does is in `behaviour.json` beside the root's settings:

    {"gate": true}        wait at the fifo `gate` until a test opens it
    {"notify": [NODE]}    trigger those, as Puppet code would
    {"command": [WORD]}   call the program itself
    {"kill": "begin"}     kill the agent, when it begins or when it ends ("end"), once
    {"exit": 1}           fail

Started with `python -I -S`: nothing but the standard library.
"""

import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def say(what: str, **more: Any) -> None:
    line = json.dumps({"what": what, "run": RUN, **more})
    os.write(2, f"history {line}\n".encode())


def ask(question: dict[str, Any]) -> dict[str, Any]:
    """Ask the agent, or the program if no agent listens, as localpuppet's Ruby code does."""
    answer: dict[str, Any]
    line = json.dumps(question).encode() + b"\n"
    peer = socket.socket(socket.AF_UNIX)
    try:
        peer.connect(os.environ["LOCALPUPPET_SOCKET"])
        peer.sendall(line)
        answer = json.loads(peer.makefile("rb").readline())
    except (ConnectionError, FileNotFoundError):
        command = [*shlex.split(os.environ["LOCALPUPPET_COMMAND"]), "call"]
        done = subprocess.run(command, input=line, stdout=subprocess.PIPE, check=True)
        answer = json.loads(done.stdout)
    finally:
        peer.close()
    return answer


def notify(receivers: list[str]) -> None:
    question = {
        "verb": "trigger",
        "name": "test",
        "hosts": receivers,
        "tags": [],
        "ttl": None,
        "keyprefix": "/puppet_trigger/events",
        "keyttl": 180,
        "engine": None,
        "run": None,
    }
    answer = ask(question)
    if not answer["ok"]:
        say("unsent", error=answer["error"])
        return
    for to in answer["sent"]:
        say("sent", to=to, uuid=answer["uuid"])
    for drop in answer["dropped"]:
        say("loop", to=drop["node"], reason=drop["reason"])


def kill_agent(wanted: str) -> None:
    """Kill the agent, unless that was done: its next run is to end."""
    try:
        (ROOT / f"kill-{wanted}").unlink()
    except FileNotFoundError:
        return
    say("killed")
    os.kill(os.getppid(), signal.SIGKILL)


ROOT = Path(os.environ["LOCALPUPPET_ROOT"])
RUN = f"{os.getpid()}-{time.monotonic_ns()}"
behaviour = json.loads((ROOT / "behaviour.json").read_text())
say("started", cause=os.environ["LOCALPUPPET_CAUSE"])
kill_agent("begin")
if behaviour.get("gate"):
    (ROOT / "gate").read_bytes()
if behaviour.get("notify"):
    notify(behaviour["notify"])
if behaviour.get("command"):
    program = shlex.split(os.environ["LOCALPUPPET_COMMAND"])
    subprocess.run([*program, *behaviour["command"]], check=False)
say("ended")
kill_agent("end")
sys.exit(behaviour.get("exit", 0))

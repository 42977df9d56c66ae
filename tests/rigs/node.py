"""A node for each test: its own root, its own Puppet directories, the real Puppet."""

import atexit
import fcntl
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.rigs import preloaded

REPOSITORY = preloaded.REPOSITORY
COMMAND = preloaded.COMMAND
# Ends a wait that would last for ever. No test waits for it to pass, so it is long: two cores with
# a load of 18 once took 120 seconds for a step that takes two. It is shorter than the `sleep 600`
# of a child that a test expects to be killed.
PATIENCE = 400.0


@dataclass
class Done:
    """A finished command."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        value: dict[str, Any] = json.loads(self.out)
        return value


def completed(
    *words: str | Path, check: bool = True, given: str = "", timeout: float = PATIENCE, **more: Any
) -> Done:
    """Run a program, in `/` unless `more` says otherwise; `check` that it succeeds."""
    command = [str(word) for word in words]
    options = {"cwd": "/", "capture_output": True, "text": True, **more}
    done = subprocess.run(command, input=given, timeout=timeout, check=False, **options)
    assert not check or done.returncode == 0, done.stderr
    return Done(done.returncode, done.stdout, done.stderr)


def shell(text: str) -> str:
    """Run a line as a user would paste it; return what it printed, errors included."""
    return completed("/bin/sh", "-c", f"exec 2>&1; {text}", check=False).out


@dataclass
class Node:
    """A root in its own directory."""

    root: Path
    # words that start a program elsewhere, in another network, say
    inside: list[str] = field(default_factory=list)
    # programs that were started and have not ended
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def state(self) -> Path:
        return self.root / "var"

    def write(self, name: str, text: str, mode: int = 0o644) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        path.chmod(mode)
        return path

    @property
    def compiled(self) -> Path:
        """Where compiled Ruby is kept."""
        return self.state / "cache" / "ruby"

    def has_compiled(self) -> bool:
        """Return whether all is compiled that the last run was made of."""
        names = {path.name for path in self.compiled.glob("*")}
        return names == {"lock", "pack"} and not processes_with(str(self.compiled))

    def copy_pack(self) -> None:
        """Replace the link to compiled Ruby by a copy.

        The link of a later node changes the times of the file, which a fork server watches.
        """
        pack = self.compiled / "pack"
        if pack.exists():
            Path(shutil.copy(pack, self.compiled / "copy")).rename(pack)

    def apart(self) -> list[Path]:
        """Return the processes of this node that run by themselves after a run.

        One publishes, another compiles Ruby; both write in the state directory.
        """
        return processes_with(str(self.root), str(self.compiled))

    def settings(self, **more: Any) -> None:
        puppet = {"confdir": "puppet/conf", "vardir": "puppet/var", **more.pop("puppet", {})}
        # Tests may run on a machine of a cloud: they must not read the data of that machine.
        cloud = {"cloud_init": False}
        self.write(
            "localpuppet.yaml", json.dumps({"puppet": puppet, "instance_data": cloud, **more})
        )

    def app(self, code: str, *, name: str = "app", **body: Any) -> None:
        """Make `app/trunk` with a class of that name, and an input that applies it."""
        self.write(f"modules/{name}/trunk/manifest.yaml", "modulepath: []\n")
        self.write(
            f"modules/{name}/trunk/{name}/manifests/init.pp", f"class {name} {{\n{code}\n}}\n"
        )
        self.write("input.yaml", json.dumps({"app": f"{name}/trunk", "classes": {name: body}}))

    def release(self, tag: str, code: str) -> None:
        """Put a locked release of `app` on the node, with the code of its class."""
        release = f"modules/app/tags/{tag}"
        self.write(f"{release}/manifest.yaml", "modulepath: []\n")
        self.write(f"{release}/manifest.lock", "version: 1\nmodules: {}\nsources: {}\n")
        self.write(f"{release}/app/manifests/init.pp", code)

    def want(self, release: str, **body: Any) -> None:
        """Write an input that applies a release of `app`."""
        self.write("input.yaml", json.dumps({"app": f"app/{release}", "classes": {"app": body}}))

    def gate_code(self) -> str:
        """Return the code of a resource that waits until `open_gate` is called."""
        shell = f"until [ -e {self.root}/go ]; do sleep 0.1; done"
        return f"exec {{ '/bin/sh -c \"{shell}\"': timeout => 0 }}"

    def open_gate(self) -> None:
        """Let resources of `gate_code` end, those of later runs too."""
        (self.root / "go").touch()

    def environment(self, **more: str) -> dict[str, str]:
        base = {key: os.environ[key] for key in ("PATH", "TMPDIR") if key in os.environ}
        own = {"LOCALPUPPET_ROOT": str(self.root), "XDG_STATE_HOME": str(self.root / "person")}
        return {**base, **own, "LC_ALL": "C.UTF-8", **more}

    def start(
        self, *arguments: str, stdin: int = subprocess.DEVNULL, **more: str
    ) -> subprocess.Popen[str]:
        process = preloaded.start(
            [*self.inside, *COMMAND, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            stdin=stdin,
            text=True,
            env=self.environment(PYTHONPATH=str(REPOSITORY), **more),
        )
        self.running.append(process)
        return process

    def finish(
        self, process: subprocess.Popen[str], text: str | None = None, *, code: int | None = None
    ) -> Done:
        """Wait for a command; `code` is how it must exit."""
        out, err = process.communicate(text, timeout=PATIENCE)
        self.running.remove(process)
        done = Done(process.returncode, out, err)
        assert code is None or done.code == code, (
            f"{process.args!r} exited {done.code}:\n{out}{err}"
        )
        return done

    def run(self, *arguments: str, code: int | None = None, **more: str) -> Done:
        process = self.start(*arguments, stdin=subprocess.DEVNULL, **more)
        return self.finish(process, code=code)

    def feed(self, text: str, *arguments: str, code: int | None = None) -> Done:
        """Run a command with a text as its standard input."""
        return self.finish(self.start(*arguments, stdin=subprocess.PIPE), text, code=code)

    def status(self) -> dict[str, Any]:
        run: dict[str, Any] = self.run("status", "--json").json["run"]
        return run

    def runs(self) -> list[str]:
        directory = self.state / "runs"
        return sorted(path.name for path in directory.iterdir()) if directory.exists() else []

    def end(self) -> None:
        """Kill what still runs of this node, also what outlives its run."""
        for started in self.running:
            started.kill()
            started.communicate()
        self.running.clear()
        if self.root.exists():
            self.open_gate()
        for process in self.apart():
            with suppress(ProcessLookupError):
                os.kill(int(process.name), signal.SIGKILL)
        self.wait_until(lambda: not self.apart())

    def wait_until(self, condition: Callable[[], Any]) -> Any:
        """Return the first true value of `condition`, looking again and again."""
        deadline = time.monotonic() + PATIENCE
        while not (value := condition()):
            if time.monotonic() > deadline:
                raise AssertionError("the condition did not come true")
            time.sleep(0.02)
        return value

    def recorded(self) -> dict[str, Any]:
        """Return the newest status.json on disk; empty if it does not exist."""
        return self.recorded_in(self.state)

    def recorded_in(self, state: Path) -> dict[str, Any]:
        """Return the same of another state directory."""
        # A directory that begins with a dot is not published yet.
        records = sorted(state.glob("runs/[!.]*/status.json"))
        value: dict[str, Any] = json.loads(records[-1].read_text()) if records else {}
        return value

    def wait_running(self) -> dict[str, Any]:
        """Wait until Puppet runs; return the record."""
        running: dict[str, Any] = self.wait_until(
            lambda: (record := self.recorded()).get("state") == "running" and record
        )
        return running


def processes_with(*wanted: str) -> list[Path]:
    """Return those of /proc that have one of these words in their command line."""
    processes = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue  # it has ended
        if not {word.encode() for word in wanted}.isdisjoint(words):
            processes.append(process)
    return processes


# Compiled Ruby of what most catalogs need, by what is kept of Puppet. It is the file `pack`.
packs: dict[str, Path] = {}


def compiled_pack(probe: str) -> Path:
    """Return the compiled Ruby for nodes with this probe; make it if the session has none."""
    if probe not in packs:
        top = Path(tempfile.mkdtemp(prefix="lp-compiled-", dir="/tmp"))
        atexit.register(shutil.rmtree, top)
        packs[probe] = _compile(top, probe)
    return packs[probe]


def _compile(top: Path, probe: str) -> Path:
    node = make_node(top, None)
    node.write("var/cache/puppet.json", probe.replace("@ROOT@", str(top)), 0o600)
    # With a bus, Puppet stores exports.
    node.settings(bus="sqlite", buses={"sqlite": {"path": str(top / "bus.sqlite")}})
    node.app(
        "file { '/tmp/x': content => 'x' } -> exec { '/bin/true': } ~> service { 'x': }\n"
        "notify { 'x': } -> group { 'x': } -> trigger { 'x': } -> package { 'x': } -> user { 'x': }"
    )
    done = node.run("apply", "--noop")
    assert done.code in (0, 1), done.err
    node.wait_until(node.has_compiled)
    return node.compiled / "pack"


def share_puppet(directory: Path) -> str:
    """Return what is kept of the installed Puppet, with @ROOT@ for the root.

    The first process of a session asks Puppet and compiles Ruby; the others share both.
    """
    top = directory / "puppet"
    kept, compiled = top / "probe.json", top / "compiled"
    with (directory / "puppet.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not kept.exists():
            shutil.rmtree(top, ignore_errors=True)
            probe = probe_puppet(top / "probe")
            _compile(compiled, probe)
            kept.write_text(probe)
    probe = kept.read_text()
    # A copy for each process: nodes get links to it, and a link of another process would change the
    # time of a file that a fork server watches.
    copy = top / f"compiled-{os.getpid()}"
    copy.mkdir(exist_ok=True)
    packs[probe] = Path(shutil.copy(Node(compiled).compiled / "pack", copy))
    return probe


def make_node(root: Path, probe: str | None) -> Node:
    """Make a node with the sample modules; `probe` is what is known of Puppet, if anything is."""
    node = Node(root)
    for name in ("modules/foo", "modules/dist", "enc", "manifests"):
        shutil.copytree(REPOSITORY / name, root / name)
    (root / "puppet" / "conf").mkdir(parents=True)
    (root / "puppet" / "var" / "state").mkdir(parents=True)
    node.settings()
    node.write("input.yaml", (REPOSITORY / "input.yaml").read_text())
    if probe is not None:
        (root / "var" / "cache").mkdir(parents=True, mode=0o700)
        node.write("var/cache/puppet.json", probe.replace("@ROOT@", str(root)), 0o600)
        node.compiled.mkdir(mode=0o700)
        (node.compiled / "pack").hardlink_to(compiled_pack(probe))
        (node.compiled / "lock").touch(0o600)
    return node


def share_with(other: Node, node: Node) -> None:
    """Give another root on the machine a node's data about Puppet, and its compiled Ruby."""
    probe, pack = node.state / "cache" / "puppet.json", node.compiled / "pack"
    if probe.exists() and pack.exists() and not other.compiled.exists():
        other.compiled.mkdir(mode=0o700, parents=True)
        (other.state / "cache").chmod(0o700)
        own = probe.read_text().replace(f"{node.root}/", f"{other.root}/")
        other.write("var/cache/puppet.json", own, 0o600)
        (other.compiled / "pack").hardlink_to(pack)
        (other.compiled / "lock").touch(0o600)


def probe_puppet(root: Path) -> str:
    """Return what is kept of the installed Puppet, with @ROOT@ for the root."""
    node = make_node(root, None)
    done = node.run("disable", "-m", "asks Puppet for its directories")
    assert done.code == 0, done.err
    kept = (node.state / "cache" / "puppet.json").read_text()
    assert str(root) in kept
    return kept.replace(str(root), "@ROOT@")

"""The session in docs/coming-from-r10k.md is true: it is run here, and says what the page says."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rigs.forge import IDENTITY, Forge, klass
from tests.rigs.module_forge import ModuleForge, archive
from tests.rigs.node import PATIENCE, REPOSITORY, Node

PAGE = REPOSITORY / "docs" / "coming-from-r10k.md"
ADMIN, NODE = "$ ", "web01# "
HOST = "https://git.example.com"
NTP = """\
class ntp(Array[String] $servers = ['pool.ntp.org']) {
  notify { "ntp asks ${servers.join(' and ')}": }
}
"""


def session(page: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the prompt of each command of a page's console blocks, the command, what it says."""
    text = "".join(re.findall(r"```console\n(.*?)```", page, flags=re.DOTALL))
    for part in re.split(rf"^(?={re.escape(ADMIN)}|{NODE})", text, flags=re.MULTILINE):
        if part:
            head, _, said = part.partition("\n")
            prompt = ADMIN if head.startswith(ADMIN) else NODE
            yield prompt, head.removeprefix(prompt), said.splitlines()


def plain(lines: list[str]) -> list[str]:
    """Return what does not differ from day to day, nor from machine to machine."""
    found = []
    for line in lines:
        if "Facter" in line:
            continue
        # On a terminal, as on the page, a run begins with a short line.
        text = re.sub(r"^# .*puppet apply .*", "# puppet apply", line)
        text = re.sub(r"\b[0-9a-f]{12,64}\b", "ID", text)
        text = re.sub(r"\d{8}T\d{6}\.\d{6}Z-[0-9a-f]{4}", "RUN", text)
        text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME", text)
        text = re.sub(r"\b\d+(\.\d+)?( s|s| seconds)\b", "SPAN", text)
        text = re.sub(r"Puppet \d+\.\d+\.\d+", "Puppet", text)
        text = re.sub(r"catalog for \S+", "catalog for NODE", text)
        # Puppet 8 says of a noop what it would do, Puppet 7 what differs.
        text = re.sub(
            r"current_value 'absent', should be ('.*' \(noop\))", r"defined 'message' as \1", text
        )
        found.append(re.sub(r"  +", "  ", text).rstrip())
    return [line for line in found if line]


@pytest.fixture
def repositories(node: Node, forge: Forge, tmp_path: Path) -> Path:
    """What the page supposes: a control repository, a module's repository, a forge."""
    modules = ModuleForge()
    for version in ("9.4.1", "9.6.0"):
        modules.publish("puppetlabs/stdlib", version)
    needs = [{"name": "puppetlabs/stdlib", "version_requirement": ">= 9.0.0 < 10.0.0"}]
    ntp = archive("puppetlabs/ntp", "10.1.0", {"manifests/init.pp": NTP}, dependencies=needs)
    modules.files["puppetlabs-ntp-10.1.0.tar.gz"] = ntp
    forge.repo("apt").commit({"manifests/init.pp": klass("apt", "apt of ours")})
    control = forge.repo("control")
    _, _, said = next(session(PAGE.read_text()))
    control.commit(
        {
            "Puppetfile": "\n".join(said).replace(HOST, f"file://{forge.path}") + "\n",
            "environment.conf": "modulepath = site-modules:modules:$basemodulepath\n"
            "config_version = 'scripts/config_version.sh $environmentpath $environment'\n",
            "hiera.yaml": "version: 5\nhierarchy: [{name: common, path: common.yaml}]\n",
            "data/common.yaml": "ntp::servers: [ntp1.example.com, ntp2.example.com]\n",
            "site-modules/role/manifests/web.pp": "class role::web { include profile::time }\n",
            "site-modules/profile/manifests/time.pp": "class profile::time { include ntp }\n",
            "manifests/site.pp": "node default { include role::web }\n",
            ".gitignore": "/modules\n",
        }
    )
    control.git("clone", "-q", "--bare", str(control.path), f"{control.path}.git")
    control.git("remote", "add", "origin", f"file://{control.path}.git")
    # What r10k left there in its last years.
    control.write({"modules/stdlib/manifests/init.pp": klass("stdlib", "of r10k")})
    site = {
        "allow_file_urls": True,
        "sources": {"control": {"git": f"file://{control.path}.git"}},
        "forge": {"url": modules.write(tmp_path / "archives")},
    }
    (node.root / "maker").mkdir()
    node.settings(**site)
    (node.root / "maker" / "localpuppet.yaml").write_text(
        (node.root / "localpuppet.yaml").read_text()
    )
    node.write("input.yaml", "app: control/tags/r1\n")
    return control.path


def test_the_session_is_true(node: Node, forge: Forge, repositories: Path) -> None:
    url = f"file://{forge.path}"
    for prompt, command, said in session(PAGE.read_text()):
        root = node.root / "maker" if prompt == ADMIN else node.root
        line = command.replace("/etc/puppet", str(root))
        done = subprocess.run(
            ["sh", "-c", f'localpuppet() {{ "{sys.executable}" -m localpuppet "$@"; }}\n{line}'],
            cwd=repositories,
            env={
                **node.environment(PYTHONPATH=str(REPOSITORY)),
                **IDENTITY,
                "LOCALPUPPET_ROOT": str(root),
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
            timeout=PATIENCE,
        )
        shown = done.stdout.replace(str(root), "/etc/puppet").replace(url, HOST)
        assert plain(shown.splitlines()) == plain(said), command

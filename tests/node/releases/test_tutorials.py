"""The tutorials for one node and of the README: pasted commands print the shown output."""

import os
import re
from pathlib import Path

import pytest
import yaml

from tests.rigs.forge import IDENTITY, Forge, klass
from tests.rigs.module_forge import ModuleForge, archive
from tests.rigs.node import Node
from tests.rigs.sessions import plain, section, session, split_commands, typed

SERVICES = "/srv/"
FIVE_MINUTES = "Your own control repository in five minutes"
# A new machine: git has no author, and does not guess one from the host name.
NEW_MACHINE = {
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "user.useConfigOnly",
    "GIT_CONFIG_VALUE_0": "true",
}


class Terminal:
    """The shell of a reader, with the directories of the test."""

    def __init__(self, node: Node, services: Path) -> None:
        self.node = node
        self.services = services
        self.directory = services

    def enter(self, text: str) -> str:
        """Return the output of a command or a block of commands."""
        here = f"{self.services}/"
        line = text.replace(SERVICES, here)
        printed = typed(
            self.node, line, root=self.node.root, directory=self.directory, **NEW_MACHINE
        )
        for directory in re.findall(r"^(?:.*&& )?cd (\S+)", line, re.MULTILINE):
            self.directory = Path(directory)
        return printed.replace(here, SERVICES)


@pytest.mark.parametrize(
    ("page", "heading"),
    [
        ("../README.md", FIVE_MINUTES),
        ("start/first-node.md", ""),
        ("start/control-repository.md", ""),
    ],
)
def test_the_commands_of_a_tutorial_print_its_output(
    node: Node, tmp_path_factory: pytest.TempPathFactory, page: str, heading: str
) -> None:
    terminal = Terminal(node, tmp_path_factory.mktemp("services"))
    blocks = re.findall(r"```(sh|console)\n(.*?)```", section(page, heading), re.DOTALL)
    assert {language for language, _ in blocks} == {"sh", "console"}
    settings = node.root / "localpuppet.yaml"
    for language, text in blocks:
        commands: list[tuple[str, list[str] | None]] = [(text, None)]
        if language == "console":
            commands = [(line, expected) for _, line, expected in split_commands(text, ["$ "])]
        for command, expected in commands:
            printed = terminal.enter(command)
            if expected is None:
                assert printed == ""
            else:
                assert plain(printed.splitlines()) == plain(expected), command
            written = yaml.safe_load(settings.read_text()) if settings.exists() else {"puppet": {}}
            if "puppet" not in written:  # Puppet keeps the directories of the test
                node.settings(**written)


PAGE = "migrate/r10k.md"
PROMPTS = ADMIN, NODE = "$ ", "web01# "
HOST = "https://git.example.com"
NTP = """\
class ntp(Array[String] $servers = ['pool.ntp.org']) {
  notify { "ntp asks ${servers.join(' and ')}": }
}
"""


@pytest.fixture
def control(node: Node, forge: Forge, tmp_path: Path) -> Path:
    """The prerequisites of the page: a control repository, a module's repository, a forge."""
    modules = ModuleForge()
    for version in ("9.4.1", "9.6.0"):
        modules.publish("puppetlabs/stdlib", version)
    needs = [{"name": "puppetlabs/stdlib", "version_requirement": ">= 9.0.0 < 10.0.0"}]
    ntp = archive("puppetlabs/ntp", "10.1.0", {"manifests/init.pp": NTP}, dependencies=needs)
    modules.files["puppetlabs-ntp-10.1.0.tar.gz"] = ntp
    forge.repo("apt").commit({"manifests/init.pp": klass("apt", "apt of the site")})
    control = forge.repo("control")
    _, _, printed = next(session(PAGE, PROMPTS))
    control.commit(
        {
            "Puppetfile": "\n".join(printed).replace(HOST, f"file://{forge.path}") + "\n",
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
    # Modules that r10k left in the clone.
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


def test_the_commands_of_the_page_print_its_output(node: Node, forge: Forge, control: Path) -> None:
    url = f"file://{forge.path}"
    for prompt, command, printed in session(PAGE, PROMPTS):
        root = node.root / "maker" if prompt == ADMIN else node.root
        output = typed(node, command, root=root, directory=control, **IDENTITY)
        assert plain(output.replace(url, HOST).splitlines()) == plain(printed), command

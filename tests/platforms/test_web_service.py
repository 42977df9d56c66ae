"""The dashboard as a service, as docs/how-to/give-people-access.md installs it."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import starlette

from localpuppet.base.machine.own_program import shared_file
from tests.doubles.certificates import Ca, pem
from tests.rigs.node import REPOSITORY
from tests.rigs.systemd import BUS, UNITS, Machine

UNIT = "localpuppet-web.service"
DOCS = REPOSITORY / "docs/how-to/give-people-access.md"
HOOKS = REPOSITORY / "docs/how-to/deploy-on-push.md"
HOME = "/etc/localpuppet-web"
DAY = timedelta(days=1)
DOTALL = re.DOTALL | re.MULTILINE
STATE = "/var/lib/localpuppet-web"
KEY = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
SETTINGS = {
    "state": "/var/lib/localpuppet-web",
    "node": "fleet.example.com",
    "identity": {
        "certificate": "fleet.pem",
        "key": f"/run/credentials/{UNIT}/fleet.key",
        "ca": "ca.pem",
        "crl": "crl.pem",
    },
    "web": {"people": ["alice"]},
}
# A repository of releases, a key that signs them, and its first release.
SHOP = f"""
git init -q --bare /srv/shop.git
git init -q -b main /srv/shop && cd /srv/shop
ssh-keygen -q -t ed25519 -N '' -f /srv/signer
git config user.name Op && git config user.email op@example.com
git config gpg.format ssh && git config user.signingkey /srv/signer.pub
echo "op@example.com $(cat /srv/signer.pub)" > {HOME}/signers
echo 'modulepath: []' > manifest.yaml
echo '{{"version": 1, "modules": {{}}, "sources": {{}}}}' > manifest.lock
git add -A && git commit -q -m first
"""
PUSH = """
git config --system safe.directory '*'
cd /srv/shop
git tag -s -m 'shop r1' -m 'Localpuppet-Source: shop' r1
git push -q /srv/shop.git main r1
"""
CLIENT = """
import json, ssl, sys, urllib.request
where = '/srv/alice'
context = ssl.create_default_context(cafile=f'{where}/ca.pem')
context.load_cert_chain(f'{where}/{sys.argv[1]}.pem')
with urllib.request.urlopen('https://localhost:8443/nodes.json', context=context) as answer:
    print(json.load(answer)['nodes'])
"""


def identity(machine: Machine, home: str, name: str) -> Ca:
    """Write the files of an identity in a directory, and return the CA."""
    now = datetime.now(UTC)
    ca = Ca(since=now - DAY, until=now + 9 * DAY)
    own = ca.issue(f"{name}.example.com", since=now - DAY, until=now + DAY, dns=["localhost"])
    lists = ca.revoke(last_update=now - DAY, next_update=now + DAY)
    for path, text in (("ca.pem", ca.text), ("crl.pem", lists), (f"{name}.pem", own.text)):
        machine.write(f"{home}/{path}", text.decode())
    machine.write(f"{home}/{name}.key", pem(own.key).decode(), mode="0600")
    return ca


def certificates(machine: Machine) -> None:
    ca, now = identity(machine, HOME, "fleet"), datetime.now(UTC)
    machine.write("/srv/alice/ca.pem", ca.text.decode())
    for name in ("alice", "web01.example.com"):
        issued = ca.issue(name, since=now - DAY, until=now + DAY)
        machine.write(f"/srv/alice/{name}.pem", (issued.text + pem(issued.key)).decode())


def with_libraries(unit: str) -> str:
    """Return settings of a unit: the machine uses the extra `web` in this clone's .venv."""
    libraries = Path(starlette.__file__).parents[1].relative_to(REPOSITORY)
    (start,) = re.findall("^ExecStart=/usr/bin/env localpuppet (.*)$", unit, re.MULTILINE)
    return (
        f"Environment=PYTHONPATH=/opt/localpuppet:/opt/localpuppet/{libraries}\n"
        f"ExecStart=\nExecStart=/usr/bin/python3 -m localpuppet {start}\n"
    )


def test_the_dashboard_serves_people_and_has_no_privilege_on_this_machine(machine: Machine) -> None:
    certificates(machine)
    text = DOCS.read_text()
    (commands,) = re.findall(rf"^```sh\n([^`]*{UNITS}/{UNIT}[^`]*)^```", text, re.MULTILINE)
    (dropin,) = re.findall(
        rf"^```ini\n# systemctl edit {UNIT}\n(.*?)^```", text, re.DOTALL | re.MULTILINE
    )
    machine.write(f"{HOME}/localpuppet.yaml", json.dumps(SETTINGS))
    machine.write(
        f"{UNITS}/{UNIT}.d/override.conf",
        dropin + with_libraries(shared_file(f"units/{UNIT}").read_text()),
    )
    machine.run("sh", "-euc", commands)
    machine.until(lambda: "https://localhost:8443/" in machine.said(UNIT))
    assert machine.run("python3", "-c", CLIENT, "alice").out == "[]\n"
    assert "403" in machine.run("python3", "-c", CLIENT, "web01.example.com", code=1).err
    assert machine.show(UNIT, "DynamicUser") == "yes"
    pid = machine.show(UNIT, "MainPID")
    status = machine.read(f"/proc/{pid}/status")
    assert re.search(r"^CapEff:\s+0+$", status, re.MULTILINE)
    assert not re.search(r"^Uid:\s+0\b", status, re.MULTILINE)
    machine.run("systemctl", "stop", UNIT)
    assert machine.show(UNIT, "Result") == "success"
    assert machine.exists("/var/lib/localpuppet-web/web/fleet.sqlite")


def test_the_unit_starts_the_rollout_of_a_push_to_a_plain_git_server(machine: Machine) -> None:
    """With the drop-in and the hook of git that the page has."""
    identity(machine, HOME, "fleet")
    text = HOOKS.read_text()
    (dropin,) = re.findall(rf"^```ini\n# systemctl edit {UNIT}\n(.*?)^```", text, DOTALL)
    (user,) = re.findall(r"^```sh\n(useradd .*?)^```", text, DOTALL)
    (script,) = re.findall(r"^```python\n(#!.*?)^```", text, DOTALL)
    settings = {
        **SETTINGS,
        **BUS,
        "allow_file_urls": True,
        "sources": {
            "shop": {"git": "file:///srv/shop.git", "require_signed": True, "signers": "signers"}
        },
        "hooks": {
            "shop": {
                "type": "localpuppet",
                "secret_file": "secrets/hook-shop",
                "source": "shop",
                "caller": "fleet.example.com",
                "rollout": {"query": "role=shop"},
            }
        },
    }
    machine.write(f"{HOME}/localpuppet.yaml", json.dumps(settings))
    machine.write(f"{HOME}/secrets/hook-shop", KEY, mode="0600")
    machine.run("sh", "-euc", SHOP)
    machine.run("sh", "-euc", user)
    script = script.replace("https://hooks.example.com", "http://127.0.0.1:8142")
    script = script.replace("/etc/hook-shop", f"{HOME}/secrets/hook-shop")
    machine.write("/srv/shop.git/hooks/post-receive", script, mode="0755")
    key = f"LoadCredential=fleet.key:{HOME}/fleet.key\n"
    machine.write(f"{UNITS}/{UNIT}.d/override.conf", dropin + key + with_libraries(dropin))
    commands = f"localpuppet units {UNIT} > {UNITS}/{UNIT}; systemctl daemon-reload"
    machine.run("sh", "-euc", f"{commands}; systemctl start {UNIT}")

    def record() -> dict[str, Any]:
        return dict(json.loads(machine.read(f"{STATE}/web/hooks.json"))["hooks"]["shop"])

    machine.until(lambda: machine.exists(f"{STATE}/web/hooks.json"))
    # The git of Debian 12 and 13 refuses it, and that of Debian 14 does not.
    asks = ("setpriv", "--reuid=localpuppet-web", "--regid=localpuppet-web", "--clear-groups")
    asked = machine.run(*asks, "git", "ls-remote", "file:///srv/shop.git", code=None)
    assert ("belongs to another user" in record()["problem"]) == (asked.code != 0), asked
    machine.run("chown", "-R", "localpuppet-web", "/srv/shop.git")
    machine.until(lambda: "8142" in machine.said(UNIT))
    machine.run("/srv/shop.git/hooks/post-receive")
    machine.until(lambda: "waits" in record()["result"])
    machine.run("sh", "-euc", PUSH)
    machine.until(lambda: record()["release"] and not record()["unfinished"])
    # The process of the rollout has read the release, and asked for the nodes.
    assert record()["result"].startswith("shop/tags/r1: the selection matches no node")

"""The dashboard as a service, as docs/how-to/give-people-access.md installs it."""

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import starlette

from localpuppet.base.machine.own_program import shared_file
from tests.doubles.certificates import Ca, pem
from tests.rigs.node import REPOSITORY
from tests.rigs.systemd import UNITS, Machine

UNIT = "localpuppet-web.service"
DOCS = REPOSITORY / "docs/how-to/give-people-access.md"
HOME = "/etc/localpuppet-web"
DAY = timedelta(days=1)
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


def with_libraries(name: str) -> str:
    """Return settings of a unit: the machine uses the extra `web` in this clone's .venv."""
    libraries = Path(starlette.__file__).parents[1].relative_to(REPOSITORY)
    unit = shared_file(f"units/{name}").read_text()
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
    settings = {
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
    machine.write(f"{HOME}/localpuppet.yaml", json.dumps(settings))
    machine.write(f"{UNITS}/{UNIT}.d/override.conf", dropin + with_libraries(UNIT))
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

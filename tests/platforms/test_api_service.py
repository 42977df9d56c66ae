"""The PuppetDB API as a service, as docs/how-to/serve-the-puppetdb-api.md installs it."""

import json
import re

from localpuppet.base.machine.own_program import shared_file
from tests.platforms.test_web_service import identity, with_libraries
from tests.rigs.node import REPOSITORY
from tests.rigs.systemd import UNITS, Machine

UNIT = "localpuppet-puppetdb.service"
HOME = "/etc/localpuppet-puppetdb"
DOCS = REPOSITORY / "docs/how-to/serve-the-puppetdb-api.md"
URL = "http://127.0.0.1:8080/pdb/meta/v1/version"
CLIENT = f"""
import os, sys, urllib.error, urllib.request
os.setuid(int(sys.argv[1]))
try:
    print(urllib.request.urlopen({URL!r}).status)
except urllib.error.HTTPError as error:
    print(error.code)
"""


def test_the_api_serves_listed_users_and_has_no_privilege_on_this_machine(machine: Machine) -> None:
    identity(machine, HOME, "api")
    text = DOCS.read_text()
    (commands,) = re.findall(rf"^```sh\n([^`]*{UNITS}/{UNIT}[^`]*)^```", text, re.MULTILINE)
    (dropin,) = re.findall(
        rf"^```ini\n# systemctl edit {UNIT}\n(.*?)^```", text, re.DOTALL | re.MULTILINE
    )
    settings = {
        "state": "/var/lib/localpuppet-puppetdb",
        "node": "api.example.com",
        "identity": {
            "certificate": "api.pem",
            "key": f"/run/credentials/{UNIT}/api.key",
            "ca": "ca.pem",
            "crl": "crl.pem",
        },
        "web": {"puppetdb": {"users": ["www-data"]}},
    }
    machine.write(f"{HOME}/localpuppet.yaml", json.dumps(settings))
    machine.write(
        f"{UNITS}/{UNIT}.d/override.conf",
        dropin + with_libraries(shared_file(f"units/{UNIT}").read_text()),
    )
    machine.run("sh", "-euc", commands)
    machine.until(lambda: "PuppetDB API at http://127.0.0.1:8080/" in machine.said(UNIT))
    answers = {
        user: machine.run("python3", "-c", CLIENT, str(user)).out for user in (0, 33, 1, 65534)
    }
    assert answers == {0: "200\n", 33: "200\n", 1: "403\n", 65534: "403\n"}
    pid = machine.show(UNIT, "MainPID")
    status = machine.read(f"/proc/{pid}/status")
    assert re.search(r"^CapEff:\s+0+$", status, re.MULTILINE)
    assert not re.search(r"^Uid:\s+0\b", status, re.MULTILINE)
    machine.run("systemctl", "stop", UNIT)
    assert machine.show(UNIT, "Result") == "success"

"""`localpuppet check` on a node with a bus: the section `agent`, and functions that query it."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.rigs.forge import Forge, make
from tests.rigs.node import Node
from tests.rigs.tls import Authority


@pytest.mark.parametrize(
    ("agent", "problem"),
    [
        ({"warn": True}, "agent: unknown key 'warn' (did you mean 'warm'?)"),
        ({"network": {"users": "x"}}, "agent.network: unknown key 'users' (did you mean 'user'?)"),
        ({"warm": "yes"}, "agent.warm: must be a boolean, not a string"),
        ({"run_interval": 30}, "agent.run_interval: must be a string or false, not a number"),
        ({"run_cmd": {}}, "agent.run_cmd: must be a string or a list, not a mapping"),
        ({"run_interval": "often"}, "agent.run_interval: 'often' is an invalid time (a positive"),
        ([], "agent: must be a mapping, not a list"),
    ],
)
def test_check_names_the_wrong_key_of_the_agent(node: Node, agent: Any, problem: str) -> None:
    node.app("notify { 'hello': }")
    for file in ("localpuppet.yaml", "localpuppet-agent.yaml"):
        path = node.write(file, json.dumps({"agent": agent}))
        assert f"{path}: {problem}" in node.run("check", code=2).err
        path.unlink()


def test_check_reports_functions_that_lack_a_bus(node: Node, tmp_path: Path) -> None:
    repo = Forge(tmp_path / "forge").repo("control")
    site = "$nodes = puppetdb_query('nodes[certname] { }')\n"
    repo.write({"manifest.yaml": "moduledir: modules\n", "manifests/site.pp": site})
    settings = {"allow_file_urls": True, "sources": {"control": {"git": repo.url}}}
    node.settings(**settings)
    make(node, "lock", str(repo.path), code=0)
    repo.commit({}, "r1")
    node.write("input.yaml", "app: control/tags/r1\n")
    node.run("stage", code=0)

    def queries() -> list[str]:
        done = node.run("check", "--json", code=0)
        return [text for text in done.json["warnings"] if "puppetdb_query" in text]

    (warning,) = queries()
    assert "puppetdb_query queries the bus, but no bus is configured" in warning
    node.settings(**settings, bus="sqlite")
    assert queries() == []


def test_check_names_a_certificate_that_the_bus_will_refuse(node: Node, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    old = authority.node("web01.example.com", at="2020-01-01")
    node.app("notify { 'hello': }")
    files = {"ca": str(authority.path), "certificate": str(old.certificate), "key": str(old.key)}
    node.settings(bus="nats", buses={"nats": {"servers": ["tls://127.0.0.1:4222"], **files}})
    done = node.run("check", "--json")
    (warning,) = [text for text in done.json["warnings"] if "expired" in text]
    assert warning.startswith(f"{old.certificate}: the certificate expired on 2020-01-31")


def test_check_names_the_files_of_authorities_that_are_absent(node: Node, tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    own = authority.node("web01.example.com")
    node.app("notify { 'hello': }")
    present = {"certificate": str(own.certificate), "key": str(own.key), "ca": str(authority.path)}
    absent = {name: str(tmp_path / f"{name}.pem") for name in ("https", "forge", "crl")}
    node.settings(
        https_ca=absent["https"],
        forge={"ca": absent["forge"]},
        identity={**present, "crl": absent["crl"]},
    )
    warnings = "\n".join(node.run("check", "--json").json["warnings"])
    for setting, file in zip(
        ("https_ca", "forge.ca", "identity.crl"), absent.values(), strict=True
    ):
        assert f"{setting}: {file}: " in warnings
    assert str(authority.path) not in warnings

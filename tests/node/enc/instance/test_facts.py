"""Facts of instance data: which lines count, which names are reserved, which facts are hidden."""

import json
import subprocess

import pytest

from localpuppet.base.formats.names import RESERVED_PARAMETERS
from localpuppet.node.enc.instance_data import InstanceData
from localpuppet.node.enc.instance_facts import (
    MAX_FACTS,
    MAX_VALUE,
    facts_of,
    is_legacy_fact,
    is_own_fact,
    legacy_facts,
    withheld,
)
from tests.rigs.waiting import PATIENCE

SCRIPT = b"""#!/bin/sh
# A comment, and https://example.com/?a=b
#role=web
## tier = front
PATH=/evil
DB_URL=postgres://db/app?sslmode=require
  indented=no
export SHELL_VARIABLE=no
if [ "$1" = x ]; then echo a=b; fi
role=db
empty=
"""


def data(user_data: bytes) -> InstanceData:
    return InstanceData(source="ec2", instance_id="i-0a1b", user_data=user_data)


def test_facts_are_read_from_lines_of_the_predecessor_and_of_a_script() -> None:
    found = facts_of(data(SCRIPT))
    assert found.facts == {
        "instance_id": "i-0a1b",
        "role": "db",
        "tier": "front",
        "db_url": "postgres://db/app?sslmode=require",
        "empty": "",
    }
    assert set(found.left_out) == {"path"}
    assert facts_of(data(b"role=web\r\ntier=front\r\n")).facts["role"] == "web"


@pytest.mark.parametrize(
    "user_data", [b"", b"\x1f\x8b\x08role=web\n", b"#localpuppet-input\nrole=web\n", b"nothing\n"]
)
def test_user_data_without_facts_leaves_only_the_instance_id(user_data: bytes) -> None:
    assert facts_of(data(user_data)).facts == {"instance_id": "i-0a1b"}


def test_user_data_cannot_set_the_instance_id() -> None:
    found = facts_of(data(b"instance_id=i-evil\nINSTANCE_ID=i-evil\n"))
    assert found.facts == {"instance_id": "i-0a1b"}
    assert "own id" in found.left_out["instance_id"]


def test_facts_above_a_limit_are_left_out_with_a_reason() -> None:
    lines = [b"long=" + b"x" * (MAX_VALUE + 1), b"fits=" + b"x" * MAX_VALUE, b"escape=\x1b[31m"]
    lines += [b"n%d=x" % number for number in range(MAX_FACTS)]
    found = facts_of(data(b"\n".join(lines)))
    assert len(found.facts) == MAX_FACTS
    assert "fits" in found.facts
    assert f"{MAX_VALUE} bytes" in found.left_out["long"]
    assert "control character" in found.left_out["escape"]
    assert f"more than {MAX_FACTS}" in found.left_out[f"n{MAX_FACTS - 1}"]
    assert not any("x" * 9 in reason for reason in found.left_out.values())


@pytest.mark.puppet
def test_names_of_facter_facts_on_any_system_are_reserved() -> None:
    """User data could set a fact that Facter does not find on this machine."""
    asked = """
        require 'facter'
        require 'facter/config'
        library = $LOADED_FEATURES.grep(%r{/facter\\.rb$}).first.delete_suffix('.rb')
        names = Facter::Config::FACT_GROUPS.values.flatten
        Dir["#{library}/facts/**/*.rb"].each do |file|
          text = File.read(file)
          names += text.scan(/FACT_NAME\\s*=\\s*'([^']+)'/).flatten
          text.scan(/ALIASES\\s*=\\s*(?:%w\\[(.*?)\\]|'([^']+)')/m) { names += ($1 || $2).split }
        end
        puts names
    """
    done = subprocess.run(
        ["ruby", "-e", asked], capture_output=True, text=True, timeout=PATIENCE, check=True
    )
    names = {name.split(".")[0] for name in done.stdout.split()}
    assert len(names) > 150
    samples = {
        name.replace("[0-9]+", "7").replace(".*", "x").replace("*", "x") for name in names
    } | {"ipaddress_eth9", "processor12", "sshed448key", "mtu_lo"}
    assert sorted(name for name in samples if not is_own_fact(name)) == []


@pytest.mark.puppet
def test_facts_that_facter_hides_by_default_are_legacy() -> None:
    usual, with_hidden = (
        set(json.loads(_facter("--json", *more))) for more in ((), ("--show-legacy",))
    )
    assert [name for name in usual if is_legacy_fact(name)] == []
    hidden = with_hidden - usual
    assert "osfamily" in hidden
    assert [name for name in hidden if not is_legacy_fact(name)] == []


@pytest.mark.puppet
def test_legacy_facts_have_the_values_that_facter_gives_them() -> None:
    shown = json.loads(_facter("--json", "--show-legacy"))
    usual = {name: value for name, value in shown.items() if not is_legacy_fact(name)}
    made = legacy_facts(usual)
    wrong = {
        name: (value, shown[name])
        for name, (_, value) in made.items()
        if name in shown and value != shown[name]
    }
    assert wrong == {}
    unknown = shown.keys() - usual.keys() - made.keys()
    assert unknown <= {"dhcp_servers", *(name for name in shown if name.startswith("sshfp_"))}


def _facter(*arguments: str) -> str:
    done = subprocess.run(["facter", *arguments], capture_output=True, text=True, timeout=PATIENCE)
    return done.stdout  # it exits with 1 if a fact cannot be read, as in a container


def test_only_names_that_puppet_sets_are_reserved() -> None:
    for name in (*RESERVED_PARAMETERS, "certname", "puppetversion"):
        found = facts_of(data(f"{name}=evil\n".encode()))
        assert found.facts == {"instance_id": "i-0a1b"}, name
    for name in ("role", "tier", "datacenter", "processor_kind", "db_network"):
        assert facts_of(data(f"{name}=x\n".encode())).facts[name] == "x"


def test_only_the_role_is_published_by_default() -> None:
    assert withheld(("role", "db_password", "instance_id")) == {"db_password", "instance_id"}

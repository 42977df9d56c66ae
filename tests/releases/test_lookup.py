"""`localpuppet lookup`: Hiera as a run sees it, with the real Puppet and the real eyaml."""

import json
import subprocess

import pytest

from tests.rigs.node import Node

HIERA = """\
version: 5
defaults: {datadir: data, data_hash: yaml_data}
hierarchy:
  - name: secrets
    lookup_key: eyaml_lookup_key
    path: secrets.eyaml
    options: {pkcs7_private_key: KEYS/private.pem, pkcs7_public_key: KEYS/public.pem}
  - {name: node, path: 'nodes/%{trusted.certname}.yaml'}
  - {name: role, path: 'role/%{role}.yaml'}
  - {name: os, path: 'os/%{facts.os.family}.yaml'}
  - {name: common, path: common.yaml}
"""


def eyaml(node: Node, *arguments: str) -> str:
    keys = [f"--pkcs7-{kind}-key={node.root}/keys/{kind}.pem" for kind in ("private", "public")]
    done = subprocess.run(
        ["eyaml", *arguments, *keys], capture_output=True, text=True, check=True, cwd=node.root
    )
    return done.stdout.strip()


@pytest.fixture
def hiera(node: Node) -> Node:
    """A node with data at each level, a module of its own data, and a secret."""
    node.app("", msg=None)
    release = "modules/app/trunk"
    node.write(f"{release}/app/manifests/init.pp", "class app ($msg) { notify { $msg: } }\n")
    node.write(f"{release}/hiera.yaml", HIERA.replace("KEYS", f"{node.root}/keys"))
    node.write(
        f"{release}/data/common.yaml",
        "app::msg: from common\nlist: [common]\nlookup_options:\n  list: {merge: unique}\n",
    )
    node.write(f"{release}/data/role/web.yaml", "app::msg: from web\nlist: [web]\n")
    node.write(f"{release}/data/os/Debian.yaml", "family: {name: Debian}\n")
    node.write(f"{release}/app/hiera.yaml", "version: 5\ndefaults: {data_hash: yaml_data}\n")
    node.write(f"{release}/app/data/common.yaml", "app::own: of the module\n")
    eyaml(node, "createkeys")
    secret = eyaml(node, "encrypt", "-s", "hunter2", "-o", "string")
    node.write(f"{release}/data/secrets.eyaml", f"secret: {secret}\n")
    node.write(
        "input.yaml",
        json.dumps({"app": "app/trunk", "classes": ["app"], "parameters": {"role": "web"}}),
    )
    return node


def test_a_lookup_and_a_run_see_the_same(hiera: Node) -> None:
    assert hiera.run("lookup", "app::msg").out == "from web\n"
    assert "Notice: from web" in hiera.run("apply").out
    assert hiera.run("lookup", "list", "--json").json["value"] == ["web", "common"]


def test_levels_modules_and_secrets(hiera: Node) -> None:
    assert hiera.run("lookup", "family.name").out == "Debian\n"
    assert hiera.run("lookup", "app::own").out == "of the module\n"
    assert hiera.run("lookup", "secret").out == "hunter2\n"


def test_what_is_not_there_is_said_with_exit_code_1(hiera: Node) -> None:
    missing = hiera.run("lookup", "nothing")
    assert missing.code == 1
    assert missing.err.startswith("localpuppet: error: nothing: there is no value")
    assert len(missing.err.splitlines()) == 1
    explained = hiera.run("lookup", "nothing", "--explain", "--json")
    assert (explained.code, explained.json["found"]) == (1, False)
    assert "role/web.yaml" in explained.json["explanation"]


def test_another_node_document_gives_another_answer(hiera: Node) -> None:
    document = json.loads(hiera.run("enc").out)
    file = hiera.write("doc.json", json.dumps({**document, "parameters": {"role": "db"}}))
    assert hiera.run("lookup", "app::msg", "--node-document", str(file)).out == "from common\n"
    file.write_text("[]")
    assert hiera.run("lookup", "app::msg", "--node-document", str(file)).code == 2


@pytest.mark.parametrize("key", ["", "--help-me", "-x"])
def test_what_is_not_a_key_is_refused(hiera: Node, key: str) -> None:
    assert hiera.run("lookup", "--", key).code == 2


def test_data_that_cannot_be_read_is_named(hiera: Node) -> None:
    hiera.write("modules/app/trunk/data/role/web.yaml", "a: [\n")
    refused = hiera.run("lookup", "app::msg")
    assert refused.code == 2
    assert "role/web.yaml" in refused.err
    assert len(refused.err.splitlines()) == 1


@pytest.mark.parametrize("key", ["app::msg", "nothing"])
def test_what_a_manifest_says_is_not_an_error_of_the_lookup(hiera: Node, key: str) -> None:
    """A value is a value, whatever stands on standard error beside it; and nothing is nothing."""
    hiera.write(
        "modules/app/trunk/app/manifests/init.pp",
        "class app ($msg) {\n  err('Error: of the manifest')\n"
        "  warning('an Error is near')\n  notify { $msg: }\n}\n",
    )
    found = hiera.run("lookup", key, "--json")
    assert found.code == (0 if key == "app::msg" else 1), found.err
    assert found.json["value"] == ("from web" if key == "app::msg" else None)


def test_a_catalog_that_does_not_compile_is_an_error_of_the_lookup(hiera: Node) -> None:
    hiera.write("modules/app/trunk/app/manifests/init.pp", "class app { fail('on purpose') }\n")
    refused = hiera.run("lookup", "nothing")
    assert refused.code == 2
    assert "on purpose" in refused.err

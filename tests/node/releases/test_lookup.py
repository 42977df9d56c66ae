"""`localpuppet lookup`: the same values as in a run, with the real Puppet and the real eyaml."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.rigs.eyaml import LEVEL, NEEDS_EYAML, encrypted
from tests.rigs.long import with_sample
from tests.rigs.node import Node

HIERA = """\
version: 5
defaults: {datadir: data, data_hash: yaml_data}
hierarchy:
  - {name: node, path: 'nodes/%{trusted.certname}.yaml'}
  - {name: role, path: 'role/%{role}.yaml'}
  - {name: os, path: 'os/%{facts.os.family}.yaml'}
  - {name: common, path: common.yaml}
"""


@pytest.fixture
def hiera(node: Node) -> Node:
    node.app("", msg=None)
    release = "modules/app/trunk"
    node.write(f"{release}/app/manifests/init.pp", "class app ($msg) { notify { $msg: } }\n")
    node.write(f"{release}/hiera.yaml", HIERA)
    node.write(
        f"{release}/data/common.yaml",
        "app::msg: from common\nlist: [common]\nlookup_options:\n  list: {merge: unique}\n",
    )
    node.write(f"{release}/data/role/web.yaml", "app::msg: from web\nlist: [web]\n")
    node.write(f"{release}/data/os/Debian.yaml", "family: {name: Debian}\n")
    node.write(f"{release}/app/hiera.yaml", "version: 5\ndefaults: {data_hash: yaml_data}\n")
    node.write(f"{release}/app/data/common.yaml", "app::own: of the module\n")
    node.write(
        "input.yaml",
        json.dumps({"app": "app/trunk", "classes": ["app"], "parameters": {"role": "web"}}),
    )
    return node


def test_a_lookup_finds_values_of_levels_and_modules_as_a_run_does(hiera: Node) -> None:
    assert hiera.run("lookup", "app::msg").out == "from web\n"
    assert "Notice: from web" in hiera.run("apply").out
    assert hiera.run("lookup", "list", "--json").json["value"] == ["web", "common"]
    assert hiera.run("lookup", "family.name").out == "Debian\n"
    assert hiera.run("lookup", "app::own").out == "of the module\n"


@NEEDS_EYAML
def test_a_lookup_finds_a_secret_of_eyaml(hiera: Node, tmp_path: Path) -> None:
    release = "modules/app/trunk"
    hiera.write(f"{release}/hiera.yaml", HIERA + LEVEL.replace("KEYS", str(tmp_path)))
    hiera.write(f"{release}/data/secrets.eyaml", f"secret: {encrypted(tmp_path, 'hunter2')}\n")
    assert hiera.run("lookup", "secret").out == "hunter2\n"


def test_a_missing_key_is_reported_with_exit_code_1(hiera: Node) -> None:
    missing = hiera.run("lookup", "nothing", code=1)
    assert missing.err.startswith("localpuppet: error: nothing: there is no value")
    assert len(missing.err.splitlines()) == 1
    explained = hiera.run("lookup", "nothing", "--explain", "--json")
    assert (explained.code, explained.json["found"]) == (1, False)
    assert "role/web.yaml" in explained.json["explanation"]


def test_a_lookup_uses_the_given_node_document(hiera: Node) -> None:
    document = json.loads(hiera.run("enc").out)
    file = hiera.write("doc.json", json.dumps({**document, "parameters": {"role": "db"}}))
    assert hiera.run("lookup", "app::msg", "--node-document", str(file)).out == "from common\n"
    file.write_text("[]")
    hiera.run("lookup", "app::msg", "--node-document", str(file), code=2)


@pytest.mark.parametrize("key", ["", "--help-me", "-x"])
def test_an_invalid_key_is_refused(hiera: Node, key: str) -> None:
    hiera.run("lookup", "--", key, code=2)


@pytest.mark.parametrize(
    ("file", "text", "key", "problem"),
    [
        ("data/role/web.yaml", "a: [\n", "app::msg", "role/web.yaml"),
        ("app/manifests/init.pp", "class app { fail('on purpose') }\n", "nothing", "on purpose"),
    ],
)
def test_data_or_code_that_puppet_refuses_is_an_error_of_the_lookup(
    hiera: Node, file: str, text: str, key: str, problem: str
) -> None:
    hiera.write(f"modules/app/trunk/{file}", text)
    refused = hiera.run("lookup", key, code=2)
    assert problem in refused.err
    assert len(refused.err.splitlines()) == 1


@pytest.mark.parametrize("key", ["app::msg", "nothing"])
def test_log_lines_of_a_manifest_are_not_an_error_of_the_lookup(hiera: Node, key: str) -> None:
    """Text on standard error changes neither a value nor its absence."""
    hiera.write(
        "modules/app/trunk/app/manifests/init.pp",
        "class app ($msg) {\n  err('Error: of the manifest')\n"
        "  warning('an Error is near')\n  notify { $msg: }\n}\n",
    )
    found = hiera.run("lookup", key, "--json")
    assert found.code == (0 if key == "app::msg" else 1), found.err
    assert found.json["value"] == ("from web" if key == "app::msg" else None)


def puppet_lookup(node: Node, directory: Path, *words: str) -> str:
    """Return what the real `puppet lookup` prints for a control repository, without its CA."""
    environments = node.root / "environments"
    environments.mkdir(exist_ok=True)
    link = environments / "production"
    link.unlink(missing_ok=True)
    link.symlink_to(directory)
    places = {"confdir": "bare/conf", "vardir": "bare/var", "environmentpath": "environments"}
    options = [f"--{name}={node.root / path}" for name, path in places.items()]
    done = subprocess.run(
        ["puppet", "lookup", *words, "--render-as", "json", *options, "--log_level", "err"],
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout if done.returncode == 0 else "refused\n"


TREE_HIERA = HIERA.replace("%{role}", "%{facts.role}")


@pytest.fixture
def tree(node: Node) -> Path:
    """A work tree of a control repository that no input names."""
    node.settings()
    node.write("tree/manifest.yaml", "moduledir: modules\n")
    node.write("tree/hiera.yaml", TREE_HIERA)
    node.write(
        "tree/data/common.yaml", "users: {root: {uid: 0}}\nlist: [c]\nos: none\nfrom: common\n"
    )
    node.write("tree/data/role/web.yaml", "users: {web: {uid: 33}}\nlist: [b, c]\nfrom: role\n")
    node.write("tree/data/nodes/web01.example.com.yaml", "list: [a]\nfrom: node\n")
    node.write("tree/data/os/Plan9.yaml", "os: plan 9\n")
    (node.root / "input.yaml").unlink(missing_ok=True)
    return node.root / "tree"


OVERRIDES = {"none": {}, "role": {"role": "web"}, "os": {"os": {"family": "Plan9"}}}


@pytest.mark.parametrize(
    ("overridden", "words"),
    with_sample(
        [
            ("none", "list"),
            ("role", "list"),
            ("role", "list --merge unique"),
            ("role", "users --merge hash"),
            ("role", "users --merge deep"),
            ("role", "users --merge first"),
            ("role", "list --type Array[String]"),
            ("role", "list --type Integer"),
            ("os", "os"),
        ],
        ("role", "users --merge deep"),
    ),
)
def test_a_lookup_in_a_work_tree_gives_the_same_answer_as_puppet_lookup(
    node: Node, tree: Path, overridden: str, words: str
) -> None:
    facts = node.write("facts.json", json.dumps(OVERRIDES[overridden]))
    own = node.run("lookup", *words.split(), "--dir", str(tree), "--facts", str(facts), "--json")
    by_puppet = puppet_lookup(node, tree, *words.split(), "--facts", str(facts))
    if by_puppet == "refused\n":
        assert own.code == 2
        assert "expects an Integer value, got Tuple" in own.err
    else:
        assert own.code == 0, own.err
        assert own.json["value"] == json.loads(by_puppet.splitlines()[-1])


def test_facts_of_the_trusted_hash_can_only_be_overridden_together(node: Node, tree: Path) -> None:
    facts = node.write("facts.yaml", "hostname: web01\n")
    words = ["from", "--facts", str(facts)]
    assert puppet_lookup(node, tree, *words) == "refused\n"
    refused = node.run("lookup", *words, "--dir", str(tree), code=2)
    assert "overrides hostname without clientcert, domain, fqdn" in refused.err
    facts.write_text(
        "hostname: web01\ndomain: example.com\nfqdn: web01.example.com\n"
        "clientcert: web01.example.com\n"
    )
    assert node.run("lookup", *words, "--dir", str(tree)).out == "node\n"


def test_another_node_is_looked_up_by_its_facts_and_document(node: Node, tree: Path) -> None:
    """Without a bus a file has all facts of the node; `inputs/` has its input."""
    facts = node.write("web01.json", json.dumps({"name": "x", "values": {"role": "web"}}))
    other = ["--dir", str(tree), "--node", "web01.example.com", "--facts", str(facts)]
    assert node.run("lookup", "from", *other).out == "node\n"
    assert node.run("lookup", "list", *other, "--merge", "unique", "--json").json["value"] == [
        *("a", "b", "c")
    ]
    assert node.run("lookup", "os", *other).out == "none\n", "no fact of this machine is used"
    missing = node.run("lookup", "from", "--dir", str(tree), "--node", "web01.example.com")
    assert missing.code != 0
    node.write("tree/hiera.yaml", TREE_HIERA.replace("facts.role", "tier"))
    node.write("inputs/web01.example.com.yaml", "app: x/trunk\nparameters: {tier: web}\n")
    node.write("tree/data/nodes/web01.example.com.yaml", "list: [a]\n")
    assert node.run("lookup", "from", *other).out == "role\n"
    document = node.write(
        "doc.json", '{"classes": {}, "parameters": {"tier": "db"}, "environment": "production"}'
    )
    assert node.run("lookup", "from", *other, "--node-document", str(document)).out == "common\n"

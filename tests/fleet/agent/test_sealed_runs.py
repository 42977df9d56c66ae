"""Runs with sealed values on the real Puppet, warm and cold: what they leave and refuse."""

import os
import zlib
from base64 import b64encode
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.rigs.eyaml import LEVEL, NEEDS_EYAML, encrypted
from tests.rigs.node import Node, make_node
from tests.rigs.sealed import Sealing
from tests.rigs.warm.node import WarmNode

# A word in every sealed value of these tests, and in nothing else.
CANARY = b"canary"
# A type whose events show values, as types of modules do, and a function that writes to the output.
SETTING = """
Puppet::Type.newtype(:app_setting) do
  newparam(:file, namevar: true) {}
  newproperty(:value) {}
end
Puppet::Type.type(:app_setting).provide(:ruby) do
  def value = (File.read(resource[:file]) if File.exist?(resource[:file])).to_s
  def value=(text)
    File.write(resource[:file], text)
  end
end
"""
PRINT = """
Puppet::Functions.create_function(:'app::print') do
  def print(text)
    $stdout.puts "printed #{text}"
    $stderr.puts "on two lines: #{text.inspect}"
  end
end
"""
# Everything that a manifest can do with a value besides what it is for: the files in `for/`.
LEAKS = """
$secret = lookup('db::password')
$text = $secret.unwrap
$plain = lookup('db::plain')
$data = lookup('db::data').unwrap
file { '@ROOT@/for/sensitive': content => $secret, show_diff => true }
file { '@ROOT@/for/unwrapped': content => "a=${text}\\nb=${data['user']}\\n", show_diff => true }
file { '@ROOT@/for/plain': content => $plain, backup => '.bak' }
file { '@ROOT@/for/tls.key': content => sealed_file('tls.key'), backup => 'puppet' }
app_setting { '@ROOT@/for/setting': value => $text }
app_setting { '@ROOT@/for/nested': value => "x ${data['hosts'][0]} y" }
notify { 'sensitive': message => $secret }
notify { 'plain': message => "it is ${plain}", withpath => true }
exec { 'echo': command => "/bin/echo ${text}", logoutput => true }
exec { 'fails': command => "/bin/sh -c 'echo \\"\\$PW\\"; exit 1'",
  environment => ["PW=${plain}"] }
exec { 'looks': provider => shell,
  command => "env; cat /proc/\\$PPID/environ /proc/*/cmdline; ls -l /proc/self/fd",
  logoutput => true }
warning("careful ${text}")
notice($data, String([$plain], '%p'))
app::print($plain)
"""
PLAIN = 'first canary "plain" ü\\ it\'s $x #{z}'
FIRST = {"db::password": "canary-first-password", "db::plain": PLAIN}
DATA = '{"user": "alice-canary-%s", "hosts": ["canary-host-%s"], "port": 5432}'
TLS = b"-----BEGIN KEY-----\ncanary-key-line\n\xff\x00canary\n"


def seal(sealing: Sealing, turn: str, number: int) -> None:
    for key, text in FIRST.items():
        kind = "plain" if key == "db::plain" else "string"
        sealing.set(f"common/{key}", text.replace("first", turn), number=number, type=kind)
    sealing.set("common/db::data", DATA % (turn, turn), number=number, type="data")
    sealing.set("files/tls.key", TLS + turn.encode(), number=number, type="file")


def add_type_and_function(sealing: Sealing) -> None:
    """Add the type `app_setting` and the function `app::print` to the release."""
    module = sealing.directory / "app/lib/puppet"
    for name, code in (("type/app_setting", SETTING), ("functions/app/print", PRINT)):
        (module / name).parent.mkdir(parents=True, exist_ok=True)
        (module / name).with_suffix(".rb").write_text(code)


def files_with(root: Path, text: bytes) -> list[str]:
    """Return the files below a directory with a text in them, packed too, or in their names."""
    found = []
    for path in sorted(root.rglob("*")):
        data = path.read_bytes() if path.is_file() else b""
        with suppress(zlib.error):
            data = zlib.decompress(data)
        if text in data or text in os.fsencode(path.name):
            found.append(str(path.relative_to(root)))
    return found


@pytest.fixture
def site(is_warm: bool, tmp_path: Path, puppet_probe: str) -> Iterator[WarmNode]:
    made = WarmNode(make_node(tmp_path, puppet_probe), warm=is_warm)
    yield made
    made.end()
    made.node.end()


@pytest.mark.parametrize("is_warm", [True, False])
def test_opened_values_are_in_files_of_a_manifest_alone(site: WarmNode, is_warm: bool) -> None:
    node = site.node
    node.write("puppet/conf/puppet.conf", "[main]\nshow_diff = true\nreports = store\n")
    sealing = Sealing.on(node)
    add_type_and_function(sealing)
    sealing.code(LEAKS.replace("@ROOT@", str(node.root)))
    (node.root / "for").mkdir()
    records = []
    for number, turn in enumerate(("first", "second"), start=1):
        seal(sealing, turn, number)
        records.append(site.run())
        assert records[-1]["exit_code"] == 6, site.text(records[-1]["id"])
        files = files_with(node.root, CANARY)
        assert files == [f"for/{name}" for name in NAMES], "and no backup, diff, report or log"
    assert records[1]["warm"] is is_warm, records[1]["cold_reason"]
    log = site.text(records[-1]["id"])
    assert "printed [sealed common/db::plain]" in log
    assert "[sealed common/db::password]" in log, "the warning"
    assert "returns: LOCALPUPPET_RUN=" in log
    assert "returns: LOCALPUPPET_SEALED=" not in log
    assert "socket:" not in log.partition("looks/returns")[2], "an exec inherits no socket"
    assert (node.root / "for/tls.key").read_bytes() == TLS + b"second"
    assert (node.root / "for/nested").read_text() == "x canary-host-second y"


# Forms of values that no file but those of the manifest may have.
QUOTED = 'it\'s "canary" !$x `y` <z> & \\ 100%'
SPELLED = """
$data = lookup('db::numbers').unwrap
$key = sealed_file('tls.key').unwrap
$quoted = lookup('db::quoted').unwrap
file { '@ROOT@/for/number': content => "pin=${data['pin']}", show_diff => true, backup => '.bak' }
app_setting { '@ROOT@/for/pin': value => $data['pin'] }
notify { 'number': message => "pin ${data['pin']}, ${data['ratio']}" }
notify { 'binary': message => "${key}" }
notice($data['pin'], $key, shellquote($quoted))
$forms = inline_template('<%= require "shellwords"; require "erb"; require "yaml"
  [@quoted.shellescape, ERB::Util.url_encode(@quoted), ERB::Util.h(@quoted), [@quoted].to_yaml]
    .join(" ") %>')
notify { 'forms': message => $forms }
app_setting { '@ROOT@/for/forms': value => $forms }
"""


def test_a_value_is_masked_however_it_is_spelt(node: Node) -> None:
    sealing = Sealing.on(node)
    seal(sealing, "first", 1)
    sealing.set("common/db::quoted", QUOTED)
    add_type_and_function(sealing)
    (node.root / "for").mkdir()
    sealing.code(SPELLED.replace("@ROOT@", str(node.root)))
    for number, pin in enumerate((8675309001, 8675309002), start=1):
        data = f'{{"pin": {pin}, "ratio": 31337.12345}}'
        sealing.set("common/db::numbers", data, type="data", number=number)
        node.run("apply", code=0)
    in_key = b64encode(TLS + b"first")
    for text in (b"86753090", b"31337.12345", in_key, CANARY):
        left = [name for name in files_with(node.root, text) if not name.startswith("for/")]
        assert left == [], text
    (node.root / "puppet/conf/puppet.conf").write_text("[main]\npreprocess_deferred = false\n")
    inner = "Deferred('sealed_file', ['tls.key'])"
    sealing.code(f"notify {{ 'x': message => Deferred('unwrap', [{inner}]) }}")
    late = node.run("apply", code=1)
    assert "files/tls.key: is not opened while a catalog is applied" in late.out


NAMES = ("nested", "plain", "sensitive", "setting", "tls.key", "unwrapped")
REFUSED = {
    "a node that is no member": (
        "notify { 'x': message => lookup('web::password') }",
        "sealed for role=web, not for this node",
    ),
    "a title": ("notify { lookup('db::plain'): }", "a title, name or tag has a sealed value"),
    "a file name": (
        "file { 'x': ensure => file, path => \"/tmp/${lookup('db::password').unwrap}\" }",
        "a title, name or tag has a sealed value",
    ),
    "an error that quotes as Puppet does": (
        "fail(String([lookup('db::plain')], '%p'))",
        "['[sealed common/db::plain]']",
    ),
    "an error that quotes as Ruby does": (
        "file { '/x': source => \"http://127.0.0.1:1/${lookup('db::plain')}\" }",
        "[sealed common/db::plain]",
    ),
    "a tag": (
        "notify { 'x': tag => lookup('db::data').unwrap['user'] }",
        "a title, name or tag has a sealed value",
    ),
    "a merge": (
        "notify { 'x': message => lookup('db::data', Hash, 'deep') }",
        "a sealed value cannot be merged by 'deep'",
    ),
    "a value of another place": (
        "notify { 'x': message => lookup('db::moved') }",
        "was sealed for another key, group or number",
    ),
    "a missing file": ("file { '/x': content => sealed_file('none') }", "has no such file"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_a_run_says_why_it_does_not_use_a_sealed_value(node: Node, case: str) -> None:
    code, reason = REFUSED[case]
    sealing = Sealing.on(node)
    seal(sealing, "first", 1)
    sealing.group("role=web", member=False)
    sealing.set("common/web::password", "canary-of-others", group="role=web")
    values = sealing.directory / "sealed/values"
    copied = (values / "common/db::password.yaml").read_bytes()
    (values / "common/db::moved.yaml").write_bytes(copied)
    (sealing.directory / "data").mkdir()
    (sealing.directory / "data/common.yaml").write_text("db::data: {port: 1}\n")
    sealing.code(code)
    assert reason in node.run("apply", code=1).out
    assert files_with(node.root, CANARY) == []


@NEEDS_EYAML
def test_a_hierarchy_has_sealed_values_beside_those_of_eyaml(node: Node, tmp_path: Path) -> None:
    sealing = Sealing.on(node)
    sealing.set("common/db::password", "canary-sealed")
    (sealing.directory / "data").mkdir()
    secret = encrypted(tmp_path, "hunter2")
    (sealing.directory / "data/secrets.eyaml").write_text(f"db::old: {secret}\n")
    with (sealing.directory / "hiera.yaml").open("a") as file:
        file.write(LEVEL.replace("KEYS", str(tmp_path)))
    out = node.root / "out"
    both = "${lookup('db::password').unwrap} ${lookup('db::old')}"
    sealing.code(f"file {{ '{out}': content => \"{both}\" }}")
    node.run("apply", code=0)
    assert out.read_text() == "canary-sealed hunter2"


def test_opened_values_reach_neither_the_bus_nor_the_catalog_for_it(node: Node) -> None:
    buses = {"sqlite": {"path": str(node.root / "bus.sqlite")}}
    node.settings(bus="sqlite", buses=buses, inventory={"catalogs": True})
    sealing = Sealing.on(node)
    seal(sealing, "first", 1)
    attempts = {
        "@@notify { 'x': message => lookup('db::plain') }": "cannot be exported",
        "@@notify { 'x': message => lookup('db::password') }": "cannot be exported",
        "@@notify { lookup('db::plain'): }": "cannot be exported",
        "query_nodes(\"role=${lookup('db::plain')}\")": "has a sealed value",
    }
    for code, reason in attempts.items():
        sealing.code(code)
        done = node.run("apply")
        assert (done.code, reason in done.out) == (1, True), code + done.out
        assert files_with(node.root, CANARY) == []
    sealing.code(
        "$plain = lookup('db::plain')\nexec { '/bin/echo': environment => [\"PW=${plain}\"] }"
    )
    node.run("apply", code=0)
    assert files_with(node.root, b"[sealed common/db::plain]")[0].startswith("var/catalogs/offered")
    assert files_with(node.root, CANARY) == []

"""Compare whole catalogs with those that a real PuppetDB stores: resources, parameters, edges.

Puppet compiles each catalog once. Puppet's terminus of PuppetDB and localpuppet's recorder both get
it; the former's result is loaded into a real PuppetDB, and the answers of both APIs are compared.
Needs what `scripts/puppetdb` unpacks, and root. With Debian's packages
puppet-module-puppetlabs-{apache,mysql,ntp,haproxy}, a real catalog is compared as well.

    benchmarks/puppetdb_catalogs.py [--modulepath DIRECTORY]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from overhead import DEBIAN_MODULES, SITE
from puppetdb_server import UNPACKED, PuppetDb, running

from localpuppet.base.formats.names import NodeName, RunId
from localpuppet.fleet.inventory.chunks import digest_of
from localpuppet.fleet.inventory.entry import InventoryEntry
from localpuppet.fleet.inventory.query.evaluating import Evaluation
from localpuppet.fleet.inventory.query.tree import Entity, Select
from localpuppet.fleet.kept_catalogs import CatalogHeader, NodeCatalog, pack_catalog
from localpuppet.node.puppet.catalog import CanonicalCatalog
from localpuppet.web.puppetdb.catalogs import CatalogSource
from tests.doubles.inventory import MemoryInventory
from tests.fleet.make import entry_with

OWN_MODULE = Path(__file__).parent.parent / "modules" / "localpuppet" / "localpuppet" / "lib"
TERMINUS = UNPACKED / "usr/lib/ruby/vendor_ruby"
RECORD = f"""
$LOAD_PATH.unshift '{OWN_MODULE}', '{TERMINUS}'
require 'puppet'
require 'puppet/indirector/catalog/compiler'
Puppet::Resource::Catalog::Compiler.prepend(Module.new do
  def find(request)
    super.tap do |catalog|
      require 'puppet_x/localpuppet/catalogs'
      require 'puppet/indirector/catalog/puppetdb'
      recorded = PuppetX::Localpuppet::Catalogs.described(catalog)
      wire, = Puppet::Resource::Catalog::Puppetdb.new.munge_catalog(
        catalog, Time.now, {{ transaction_uuid: nil, environment: 'production' }}
      )
      File.write(ENV.fetch('OUT'), JSON.generate({{ 'recorded' => recorded, 'wire' => wire }}))
    end
  end
end)
"""
KINDS = """
class inner($secret, $deep) {
  file { '/srv/a': content => $secret, alias => 'a' }
  notify { 'n': require => File['/srv/a/'], loglevel => debug }
}
class { 'inner':
  secret => Sensitive('one'),
  deep   => { 'list' => [Sensitive('two')], 2 => /re/, 'd' => default, 'u' => undef,
              't' => Timestamp('2020-01-01'), 's' => SemVer('1.2.3') },
}
notify { 'late': message => Deferred('new', [String, 'three']), before => Notify['n'] }
file { 'named': path => '/srv/named', subscribe => [File['a'], Notify['late']] }
exec { '/bin/true': refreshonly => true, require => File['/srv/named'] }
@@notify { 'exported': require => File['named'] }
Notify['n'] -> Exec['/bin/true']
"""


class Inventory(MemoryInventory):
    """An entry that names a catalog."""

    def catalogs(self) -> dict[str, str]:
        """Return the digests."""
        return {str(one.node): one.catalog.digest for one in self.listed if one.catalog}


def compiled(code: str, node: str, modulepath: Path, scratch: Path) -> dict[str, Any]:
    """Return a catalog as localpuppet records it, and as Puppet sends it to PuppetDB."""
    manifest, hook, out = (scratch / name for name in ("site.pp", "record.rb", "out.json"))
    manifest.write_text(code)
    hook.write_text(RECORD)
    options = ["--manifest", str(manifest), "--modulepath", str(modulepath)]
    subprocess.run(
        ["/usr/bin/puppet", "catalog", "compile", node, *options],
        env={**os.environ, "RUBYOPT": f"-r{hook}", "OUT": str(out)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    found: dict[str, Any] = json.loads(out.read_text())
    return found


def shown(recorded: dict[str, Any]) -> dict[str, Any]:
    """Return the row of the entity `catalogs` of localpuppet."""
    catalog = CanonicalCatalog.of(recorded)
    packed, node = pack_catalog(catalog), NodeName(catalog.certname)
    header = CatalogHeader(
        run=RunId("20261120T140000.000000Z-abcd"),
        at=1.0,
        release="web/tags/r1",
        environment=catalog.environment,
        digest=digest_of(packed),
        size=len(packed),
    )
    found = NodeCatalog.checked(node, header, packed)

    def fetch(_: Sequence[InventoryEntry]) -> list[NodeCatalog]:
        return [found]

    reader = Inventory([entry_with(found)])
    asking = Evaluation(reader, CatalogSource(reader, fetch))
    (text,) = asking.stream(Select(entity=Entity.CATALOGS)).rows
    print(
        f"{node}: {len(catalog.resources)} resources, {len(catalog.edges)} edges,"
        f" {len(json.dumps(recorded))} bytes recorded, {len(packed)} packed"
    )
    row: dict[str, Any] = json.loads(text)
    return row


def compare(server: PuppetDb, wire: dict[str, Any], ours: dict[str, Any]) -> int:
    """Print the differences; return their number."""
    server.replace_catalog(wire)
    rows: Any = server.ask(["from", "catalogs", ["=", "certname", wire["certname"]]])
    (theirs,) = rows
    differences = sorted(theirs.keys() ^ ours.keys())
    for part in ("edges", "resources"):
        stored, shown_ = (set(map(_text, answer[part]["data"])) for answer in (theirs, ours))
        differences += [f"- {one}" for one in sorted(stored - shown_)]
        differences += [f"+ {one}" for one in sorted(shown_ - stored)]
    print("\n".join(one[:400] for one in differences))
    return len(differences)


def _text(one: dict[str, Any]) -> str:
    return json.dumps(
        {**one, "resource": None, "tags": sorted(one.get("tags", ()))}, sort_keys=True
    )


def main() -> None:
    """Compare, and print what differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modulepath", type=Path, default=DEBIAN_MODULES)
    modulepath = parser.parse_args().modulepath
    codes = {"kinds.example.com": KINDS}
    if (modulepath / "apache").exists():
        codes["real.example.com"] = f"{SITE}\ninclude site\n"
    with running() as server, tempfile.TemporaryDirectory() as scratch:
        for node, code in codes.items():
            found = compiled(code, node, modulepath, Path(scratch))
            count = compare(server, found["wire"], shown(found["recorded"]))
            print(f"{node}: {count} differences", file=sys.stderr)


if __name__ == "__main__":
    main()

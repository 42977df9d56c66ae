"""Nodes whose catalogs are compiled twice: with exports over localpuppet's bus and PuppetDB.

Puppet's terminus of PuppetDB (Debian's puppet-terminus-puppetdb, which `scripts/puppetdb` unpacks)
gets the command that `localpuppet apply` prints, with another backend: all else is the same.
"""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from puppetdb_server import PuppetDb, Tls, free_port, running

from tests.doubles.certificates import Ca, pem, rsa_key, write
from tests.rigs.member import Member
from tests.rigs.node import shell

ROUTES = """apply:
  catalog: {terminus: compiler, cache: puppetdb}
  facts: {terminus: facter, cache: puppetdb_apply}
"""
OURS = "--storeconfigs_backend localpuppet"


@dataclass(frozen=True)
class Side:
    """PuppetDB with the settings for `puppet apply` of a node.

    Attributes:
        server: The server.
        terminus: The directory with Puppet's terminus in it.
        routes: Puppet's `routes.yaml`.
    """

    server: PuppetDb
    terminus: Path
    routes: Path

    def command(self, printed: str) -> str:
        """Return the command that `localpuppet apply` printed, with PuppetDB as its backend."""
        assert OURS in printed, printed
        theirs = printed.replace(OURS, "--storeconfigs_backend puppetdb")
        return (
            f"RUBYLIB={shlex.quote(str(self.terminus))} {theirs}"
            f" --color=false --route_file {shlex.quote(str(self.routes))}"
        )

    def apply(self, printed: str) -> str:
        """Run the printed command with PuppetDB, and return Puppet's output."""
        return shell(self.command(printed))


@contextmanager
def puppetdb_beside(members: list[Member], directory: Path, terminus: Path) -> Iterator[Side]:
    """Start PuppetDB, and configure the Puppet of each node."""
    now = datetime.now(UTC)
    ca = Ca(key=rsa_key(0), since=now - timedelta(days=1), until=now + timedelta(days=2))

    def issue(name: str, path: Path) -> tuple[Path, Path]:
        issued = ca.issue(
            name,
            key=rsa_key(1),
            since=now - timedelta(hours=1),
            until=now + timedelta(days=1),
            dns=[name],
        )
        for inner in ("certs", "private_keys"):
            (path / inner).mkdir(parents=True, exist_ok=True)
        return (
            write(path / "private_keys" / f"{name}.pem", pem(issued.key)),
            write(path / "certs" / f"{name}.pem", issued.text),
        )

    key, certificate = issue("localhost", directory / "ssl")
    tls = Tls(
        port=free_port(),
        key=key,
        certificate=certificate,
        authority=write(directory / "ssl" / "ca.pem", ca.text),
    )
    for member in members:
        name, conf = str(member.name), member.root / "puppet" / "conf"
        issue(name, conf / "ssl")
        write(conf / "ssl" / "certs" / "ca.pem", ca.text)
        (conf / "puppet.conf").write_text(
            f"[main]\ncertname = {name}\nssldir = {conf}/ssl\ncertificate_revocation = false\n"
        )
        (conf / "puppetdb.conf").write_text(f"[main]\nserver_urls = https://localhost:{tls.port}\n")
    routes = directory / "routes.yaml"
    routes.write_text(ROUTES)
    with running(tls) as server:
        yield Side(server=server, terminus=terminus, routes=routes)


def printed_by(member: Member, *options: str) -> str:
    """Apply with localpuppet, and return the command that it printed."""
    done = member.run("apply", *options)
    if done.code != 0:
        raise SystemExit(f"{member.name}: {done.out}\n{done.err}")
    return done.out.splitlines()[0].removeprefix("# ")

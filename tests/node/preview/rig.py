"""Small releases and nodes for previews, and the engine with the installed Puppet."""

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from localpuppet.base.formats.documents import Documents
from localpuppet.base.machine.isolation import CodeIsolation
from localpuppet.base.machine.own_program import shared_file
from localpuppet.node.enc.input import read_enc
from localpuppet.node.preview.cache import PreviewCache, PreviewSide
from localpuppet.node.preview.compile_request import CompileRequest, CompileResult
from localpuppet.node.preview.engine import LIMITS, PuppetCompileEngine
from localpuppet.node.preview.node_capture import CapturedNode
from localpuppet.node.preview.nodes_directory import NodesDirectory
from localpuppet.node.preview.previewing import Preview, PreviewOptions
from localpuppet.node.preview.release_index import ReleaseIndex, TreeStates, index_roots
from localpuppet.node.preview.result import PreviewResult, PreviewRevision
from localpuppet.node.puppet.command_line import COMPILED, Compilation
from localpuppet.node.releases.release import Release
from localpuppet.node.runs.observer import NoteObserver
from tests.doubles.compile_engine import FakeCompileEngine, Program
from tests.doubles.ports import FakeClock
from tests.rigs.node import packs


def write_release(directory: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def release_in(directory: Path) -> Release:
    return Release(
        name=directory.name,
        directory=directory,
        modulepath=tuple(path for path in [directory / "modules"] if path.is_dir()),
        names=(),
        enc=read_enc(directory / "enc.yaml", Documents(None)),
        hiera_config=None,
        mutable=(),
        trees={"": directory},
    )


def side(
    directory: Path, cache: PreviewCache, *, is_stable: bool = True, scope: str = ""
) -> PreviewSide:
    release = release_in(directory)
    roots = index_roots(release, directory / "no-site-manifest")
    return PreviewSide(
        revision=PreviewRevision(name=directory.name),
        release=release,
        index=ReleaseIndex.of(roots, cache),
        is_stable=is_stable,
        scope=scope,
    )


def captured(directory: Path) -> list[CapturedNode]:
    return NodesDirectory(directory).nodes(TreeStates())


@dataclass(eq=False)
class PreviewRig:
    """Previews with one cache and a program."""

    directory: Path
    program: Program
    engine: FakeCompileEngine = field(init=False)
    nodes: Path = field(init=False)

    def __post_init__(self) -> None:
        self.nodes = self.directory / "nodes"
        self.engine = FakeCompileEngine(self.program)

    def cache(self, *, limit: int = 1 << 30) -> PreviewCache:
        return PreviewCache(self.directory / "cache", platform="test", limit=limit)

    def preview(
        self,
        base: Path,
        head: Path,
        *,
        options: PreviewOptions | None = None,
        cache: PreviewCache | None = None,
        scope: str = "",
    ) -> PreviewResult:
        own = cache or self.cache()
        self.engine.compiled.clear()
        try:
            return Preview(
                (side(base, own), side(head, own, scope=scope)),
                captured(self.nodes),
                cache=own,
                engine=self.engine,
                clock=FakeClock(),
                progress=NoteObserver(""),
                options=options or PreviewOptions(),
            ).result()
        finally:
            if cache is None:
                own.close()

    def shown(self) -> dict[str, object]:
        """Return what a preview of `base` and `head` shows, whatever the cache has."""
        result = self.preview(self.directory / "base", self.directory / "head").to_dict()
        result.pop("statistics")
        return result


PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
OWN_MODULES = shared_file("modules/localpuppet")
FACTS: dict[str, Any] = {
    "os": {"family": "Debian", "name": "Debian", "release": {"full": "12.5", "major": "12"}},
    "osfamily": "Debian",
    "uptime": "3 days",
    "networking": {"ip": "192.0.2.1", "fqdn": "web1.example.com"},
}


def write(directory: Path, files: Mapping[str, str]) -> Release:
    """Write a release: `hiera.yaml`, `site.pp`, and modules below `modules`."""
    write_release(directory, files)
    release = release_in(directory)
    hiera, site = directory / "hiera.yaml", directory / "site.pp"
    code = {
        f"x/{name}": directory / name
        for name in ("functions", "types", "lib")
        if (directory / name).is_dir()
    }
    return replace(
        release,
        hiera_config=hiera if hiera.exists() else None,
        site_manifest=site if site.exists() else None,
        own_code=code,
    )


def compiled_ruby() -> tuple[dict[str, str], tuple[Path, ...]]:
    """Return variables for compiled Ruby, if the session has it, and the directories of Ruby."""
    for probe, pack in packs.items():
        places = json.loads(probe)["installation"]["places"]
        return {COMPILED: str(pack.parent), "LOCALPUPPET_READ_ONLY": "1"}, tuple(map(Path, places))
    return {}, ()


@cache
def installed_version(puppet: str) -> str:
    done = subprocess.run([puppet, "--version"], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def make_engine(
    directory: Path, *, trusted: bool = True, processes: int = 1, limits: Mapping[str, int] = LIMITS
) -> PuppetCompileEngine:
    main, lean = shared_file("preview/main.rb"), shared_file("lean_start.rb")
    empty = directory / "empty.pp"
    directory.mkdir(parents=True, exist_ok=True)
    empty.write_text("")
    compiled, places = compiled_ruby()

    def compilation(release: Release, environment: str, environments: Path) -> Compilation:
        return Compilation(
            own_directories={},
            certname="",
            enc_script=Path("/nonexistent"),
            environments=environments,
            environment=environment,
            environment_code=release.environment_code,
            modulepath=(*release.whole_modulepath, OWN_MODULES),
            hiera_config=release.hiera_config,
            site_manifest=release.site_manifest or empty,
        )

    puppet = shutil.which("puppet", path=PATH) or "puppet"
    return PuppetCompileEngine(
        scratch=directory / "scratch",
        compilation=compilation,
        command=lambda: [puppet, "--version"],
        version=lambda: installed_version(puppet),
        env=lambda: {
            "PATH": PATH,
            "LC_ALL": "C.UTF-8",
            "HOME": "/nonexistent",
            "RUBYOPT": f"-r{lean} -r{main}",
            "LOCALPUPPET_UNSET": " ".join(["RUBYOPT", *compiled]),
            **compiled,
        },
        ruby=lambda: places,
        own_modules=OWN_MODULES,
        site_manifest=empty,
        isolation=CodeIsolation(
            path=PATH,
            memory=4 * limits["memory"],
            programs=1024,
            otherwise="pass '--trusted'",
            trusted=trusted,
        ),
        processes=processes,
        limits=limits,
    )


def request(node: str = "web1.example.com", *classes: str, **more: Any) -> CompileRequest:
    values: dict[str, Any] = {"facts": FACTS, "classes": {name: {} for name in classes}, **more}
    return CompileRequest(node=node, **values)


def compile_all(
    engine: PuppetCompileEngine, release: Release, requests: Sequence[CompileRequest]
) -> dict[str, CompileResult]:
    results = {result.node: result for result in engine.compile(release, requests)}
    assert len(results) == len(requests)
    return results


HIERA = """\
version: 5
defaults: {datadir: data, data_hash: yaml_data}
hierarchy:
  - {name: node, path: 'nodes/%{trusted.certname}.yaml'}
  - {name: os, path: 'os/%{facts.os.family}.yaml'}
  - {name: glob, glob: 'extra/*.yaml'}
  - {name: mapped, mapped_paths: [roles, role, 'role/%{role}.yaml']}
  - {name: json, path: common.json, data_hash: json_data}
  - {name: own, lookup_key: 'backend::keys', path: own.txt}
  - {name: common, path: common.yaml}
"""
COMMON = """\
lookup_options:
  web::port: {convert_to: Integer}
  web::list: {merge: unique}
web::port: '80'
web::list: [a]
web::greeting: "hello %{facts.os.name} from %{lookup('web::place')}"
web::place: here
unused: 1
"""
WEB = """\
class web (Integer $port, Array $list, String $greeting, Web::Name $name1 = 'x') {
  include web::inner
  require web::needed
  $v = web::calculated($port)
  $w = web::ruby('x')
  $three = web_three('y')
  notify { "w ${v} ${w} ${three} ${greeting}": }
  file { '/a': content => template('web/a.erb') }
  file { '/b': content => epp('web/b.epp', { port => $port }) }
  file { '/c': content => file('web/c.txt') }
  file { '/d': content => inline_template('<%= @osfamily %>') }
  web_thing { 'one': size => 1 }
  create_resources('web::made', { 'm' => { size => 2 } })
  if defined('web::optional') { include web::optional }
  if defined(Class['web::absent']) { fail('no') }
  $file = find_file('web/absent.txt')
  $json = lookup('from_json', String)
  $own = lookup('from_own', String)
  $extra = lookup('from_extra', Optional[String], 'first', undef)
  notify { "data ${json} ${own} ${extra}": }
}
"""
FILES = {
    "hiera.yaml": HIERA,
    "data/common.yaml": COMMON,
    "data/common.json": '{"from_json": "j"}',
    "data/os/Debian.yaml": "web::list: [b]\n",
    "data/extra/one.yaml": "from_extra: e\n",
    "data/own.txt": "from_own=o\n",
    "site.pp": "node /^web/ { } node default { }\n",
    "functions/here.pp": "function here() { 1 }\n",
    "modules/web/manifests/init.pp": WEB,
    "modules/web/manifests/inner.pp": "class web::inner { $x = $trusted['certname'] }\n",
    "modules/web/manifests/needed.pp": "class web::needed { notify { $::osfamily: } }\n",
    "modules/web/manifests/made.pp": "define web::made(Integer $size) { notify { $title: } }\n",
    "modules/web/functions/calculated.pp": (
        "function web::calculated(Integer $a) >> Integer { $a + 1 }\n"
    ),
    "modules/web/types/name.pp": "type Web::Name = Web::Inner::Name\n",
    "modules/web/types/inner/name.pp": "type Web::Inner::Name = String[1]\n",
    "modules/web/lib/puppet/functions/web/ruby.rb": (
        "require_relative '../../../puppet_x/web/helper'\n"
        "Puppet::Functions.create_function(:'web::ruby') do\n"
        "  dispatch(:ruby) { param 'String', :a }\n"
        "  def ruby(text) PuppetX::Web::Helper.call(text) end\n"
        "end\n"
    ),
    "modules/web/lib/puppet_x/web/helper.rb": (
        "require_relative 'deeper'\n"
        "module PuppetX; module Web; module Helper\n"
        '  def self.call(text) "#{text}#{PuppetX::Web::DEEP}" end\n'
        "end; end; end\n"
    ),
    "modules/web/lib/puppet_x/web/deeper.rb": "module PuppetX; module Web; DEEP = 'd'; end; end\n",
    "modules/web/lib/puppet/parser/functions/web_three.rb": (
        "module Puppet::Parser::Functions\n"
        "  newfunction(:web_three, type: :rvalue) { |args| args[0] + lookupvar('::osfamily') }\n"
        "end\n"
    ),
    "modules/web/lib/puppet/type/web_thing.rb": (
        "Puppet::Type.newtype(:web_thing) do\n"
        "  newparam(:name, namevar: true)\n"
        "  newparam(:size)\n"
        "end\n"
    ),
    "modules/web/lib/puppet/provider/web_thing/one.rb": (
        "Puppet::Type.type(:web_thing).provide(:one) { }\n"
    ),
    "modules/web/templates/a.erb": (
        "<%= @port %> <%= @facts['os']['name'] %> <%= scope['::osfamily'] %>"
        "<%= scope.function_template(['web/part.erb']) %>\n"
    ),
    "modules/web/templates/part.erb": "part <%= @title %>\n",
    "modules/web/templates/b.epp": "<%- | Integer $port | -%>\n<%= $port %>\n",
    "modules/web/files/c.txt": "c\n",
    "modules/backend/lib/puppet/functions/backend/keys.rb": (
        "Puppet::Functions.create_function(:'backend::keys') do\n"
        "  dispatch :keys do\n"
        "    param 'String', :key\n"
        "    param 'Hash', :options\n"
        "    param 'Puppet::LookupContext', :context\n"
        "  end\n"
        "  def keys(key, options, context)\n"
        "    text = context.cached_file_data(options['path'])\n"
        "    found = text.lines.map { |line| line.chomp.split('=') }.to_h\n"
        "    found.fetch(key) { context.not_found }\n"
        "  end\n"
        "end\n"
    ),
}

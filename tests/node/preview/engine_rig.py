"""The engine with the installed Puppet, and releases of a few files."""

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from localpuppet.base.machine.isolation import CodeIsolation
from localpuppet.base.share.shared_files import shared_file
from localpuppet.node.preview.compile_request import CompileRequest, CompileResult
from localpuppet.node.preview.engine import LIMITS, PuppetCompileEngine
from localpuppet.node.puppet.command_line import Compilation
from localpuppet.node.releases.release import Release
from tests.node.preview.rig import release_in, write_release

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


@cache
def installed_version(puppet: str) -> str:
    """Return the version that a command prints."""
    done = subprocess.run([puppet, "--version"], check=True, capture_output=True, text=True)
    return done.stdout.strip()


def make_engine(
    directory: Path,
    *,
    trusted: bool = True,
    processes: int = 1,
    limits: Mapping[str, int] = LIMITS,
) -> PuppetCompileEngine:
    """Return an engine whose files are below a directory."""
    main, lean = shared_file("preview/main.rb"), shared_file("lean_start.rb")
    empty = directory / "empty.pp"
    directory.mkdir(parents=True, exist_ok=True)
    empty.write_text("")

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
            "LOCALPUPPET_UNSET": "RUBYOPT",
        },
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
    """Return a request for a node with some classes."""
    values: dict[str, Any] = {"facts": FACTS, "classes": {name: {} for name in classes}, **more}
    return CompileRequest(node=node, **values)


def compile_all(
    engine: PuppetCompileEngine, release: Release, requests: Sequence[CompileRequest]
) -> dict[str, CompileResult]:
    """Return the results by node."""
    results = {result.node: result for result in engine.compile(release, requests)}
    assert len(results) == len(requests)
    return results

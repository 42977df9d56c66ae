"""A wrapper around Puppet, in a separate directory with a Puppet of another version."""

import shutil
import subprocess
from pathlib import Path

from localpuppet.base.machine.own_program import shared_file
from localpuppet.node.puppet.installation import Installation, PuppetProbe

OTHER_VERSION = "7.0.99"
_ENV = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}


def make_wrapper(directory: Path) -> Path:
    """Return a command that runs Puppet with a library of another version."""
    puppet = shutil.which("puppet", path=_ENV["PATH"]) or "puppet"
    code = "require 'puppet/version'; puts $LOADED_FEATURES.grep(%r{puppet/version.rb})"
    ruby = ["ruby", "-e", code]
    original = subprocess.run(ruby, check=True, capture_output=True, text=True).stdout.strip()
    library = directory / "wrapped/lib"
    shutil.copytree(Path(original).parent, library / "puppet")  # its files name each other
    shutil.copy(Path(original).parents[1] / "puppet.rb", library)
    version = library / "puppet/version.rb"
    text = version.read_text("utf-8")
    number = text.partition("PUPPETVERSION = '")[2].partition("'")[0]
    version.write_text(text.replace(number, OTHER_VERSION))
    wrapper = directory / "wrapped/puppet"
    wrapper.write_text(f'#!/bin/sh\nexec ruby -I{library} {puppet} "$@"\n')
    wrapper.chmod(0o755)
    return wrapper


def probe(directory: Path, command: Path, **directories: Path) -> Installation:
    """Return what a command says about itself; `directories` are those of Puppet."""
    return PuppetProbe(
        memory=directory / "puppet.json",
        command=command,
        directories=directories,
        lean_start=shared_file("lean_start.rb"),
        env=_ENV,
    ).installation()

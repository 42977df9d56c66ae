"""Packages of a tree: deb and rpm, with the same scripts, byte for byte the same each time."""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from payload import LIBRARY
from targets import ARCHITECTURES, HERE, BuildError, Target, run

SUMMARY = "OpenVox and Puppet without a server, each run supervised and recorded"
# Lines of a paragraph.
DESCRIPTION = (
    "The masterless mode of OpenVox and Puppet, 7 to 9. Each node fetches a release",
    "of Puppet code, verifies it, runs one supervised 'puppet apply' and records the",
    "result. Over a bus (SQLite, etcd or NATS), nodes trigger and query each other,",
    "and run rollouts in dependency order.",
)
PUPPET = ("openvox-agent", "puppet-agent")
_ZSH = {"deb": "zsh/vendor-completions", "rpm": "zsh/site-functions"}
# What rpm lists: these directories, and the files in directories of the system.
_OURS = (f"/{LIBRARY}", "/usr/share/doc/localpuppet")
# One thread: with several, xz packs other bytes.
_COMPRESSION = {
    "DPKG_DEB_COMPRESSOR_TYPE": "xz",
    "DPKG_DEB_COMPRESSOR_LEVEL": "3",
    "DPKG_DEB_THREADS_MAX": "1",
}
_SPEC = """\
Name: localpuppet
Version: {version}
Release: 1.{release}
Summary: {summary}
License: Apache-2.0
Requires: {requires}
AutoReqProv: no
%description
{description}
%install
cp -a {tree}/. %{{buildroot}}
%pre
[ "$1" -gt 1 ] || exit 0
set -- upgrade
{prerm}
%posttrans
set -- configure
{postinst}
%preun
[ "$1" = 0 ] || exit 0
set -- remove
{prerm}
%postun
[ "$1" = 0 ] || exit 0
set -- remove
{postrm}
%files
{files}
"""
_MACROS = {
    # Nothing is added to the tree: no links to debug files, no bytecode of the builder's Python.
    "__os_install_post": "%{nil}",
    "debug_package": "%{nil}",
    "_build_id_links": "none",
    # EL 8 and SLES 15 read it.
    "_binary_payload": "w3.xzdio",
    "_buildhost": "localpuppet",
    "use_source_date_epoch_as_buildtime": "1",
    "clamp_mtime_to_source_date_epoch": "1",
}


@dataclass(frozen=True, slots=True)
class Build:
    """What all packages of one build share."""

    version: str
    epoch: int
    common: Path
    directory: Path


def pack(build: Build, target: Target, payload: Path, work: Path) -> Path:
    """Return the package of one target: its payload and the common files, in `work` meanwhile."""
    tree = work / "tree"
    shutil.copytree(payload, tree, symlinks=True)
    shutil.copytree(build.common, tree, symlinks=True, dirs_exist_ok=True)
    share = tree / "usr/share"
    completions = share / "zsh-completion"
    (share / _ZSH[target.format]).parent.mkdir(exist_ok=True)
    completions.rename(share / _ZSH[target.format])
    _same_times_and_modes(tree, build.epoch)
    if target.format == "deb":
        return _deb(build, target, tree)
    return _rpm(build, target, tree, work)


def _same_times_and_modes(tree: Path, epoch: int) -> None:
    for path in [tree, *tree.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        os.utime(path, (epoch, epoch), follow_symlinks=False)


def _variables(build: Build) -> dict[str, str]:
    """Return what the packing programs read; a caller may choose another compression."""
    compression = {name: os.environ.get(name, value) for name, value in _COMPRESSION.items()}
    return {**compression, "SOURCE_DATE_EPOCH": str(build.epoch), "LC_ALL": "C.UTF-8"}


def _deb(build: Build, target: Target, tree: Path) -> Path:
    number = f"{build.version}-1+{target.release}"
    architecture = ARCHITECTURES[target.payload.architecture]
    # As Debian's policy counts it: 'du' depends on the file system and differs from build to build.
    size = sum(
        -(-path.lstat().st_size // 1024) if path.is_file() and not path.is_symlink() else 1
        for path in tree.rglob("*")
    )
    control = tree / "DEBIAN"
    control.mkdir()
    depends = [
        *target.needs,
        "git",
        " | ".join([*PUPPET, "puppet"]),
        "systemd | systemd-standalone-sysusers",
        "libseccomp2",
        "libstdc++6",
    ]
    (control / "control").write_text(
        f"Package: localpuppet\nVersion: {number}\nArchitecture: {architecture}\n"
        f"Maintainer: localpuppet <root@localhost>\nInstalled-Size: {size}\n"
        f"Depends: {', '.join(depends)}\nSuggests: graphviz\nSection: admin\nPriority: optional\n"
        f"Description: {SUMMARY}\n" + "".join(f" {line}\n" for line in DESCRIPTION)
    )
    for script in ("prerm", "postinst", "postrm"):
        shutil.copy(HERE / script, control / script)
        (control / script).chmod(0o755)
    _same_times_and_modes(control, build.epoch)
    deb = build.directory / f"localpuppet_{number}_{architecture}.deb"
    run("dpkg-deb", "--root-owner-group", "--build", tree, deb, more=_variables(build))
    return deb


def _rpm(build: Build, target: Target, tree: Path, work: Path) -> Path:
    if not shutil.which("rpmbuild"):
        raise BuildError("needs rpmbuild (apt install rpm)")
    scripts = {
        # A '%' begins a macro.
        name: (HERE / name).read_text().replace("%", "%%")
        for name in ("prerm", "postinst", "postrm")
    }
    files = [f"/{path.relative_to(tree)}" for path in sorted(tree.rglob("*")) if not path.is_dir()]
    spec = work / "localpuppet.spec"
    spec.write_text(
        _SPEC.format(
            version=build.version,
            release=target.release,
            summary=SUMMARY,
            requires=", ".join([*target.needs, f"({' or '.join(PUPPET)})", "systemd"]),
            description="\n".join(DESCRIPTION),
            tree=tree,
            files="\n".join(
                [
                    *_OURS,
                    *(
                        file
                        for file in files
                        if not file.startswith(tuple(f"{our}/" for our in _OURS))
                    ),
                ]
            ),
            **scripts,
        )
    )
    macros = {**_MACROS, "_topdir": str(work / "rpm"), "_rpmdir": str(work / "made")}
    defines = [word for name, value in macros.items() for word in ("--define", f"{name} {value}")]
    architecture = target.payload.architecture
    buildroot = work / "buildroot"
    run(
        "rpmbuild",
        "-bb",
        "--quiet",
        f"--target={architecture}-linux",
        f"--buildroot={buildroot}",
        *defines,
        spec,
        more=_variables(build),
    )
    (made,) = (work / "made").rglob("*.rpm")
    rpm = build.directory / made.name
    shutil.move(made, rpm)
    return rpm

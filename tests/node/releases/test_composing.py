"""The layout of a release: its manifest decides whether it is a control repository."""

from pathlib import Path

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.node.releases.composing import ReleaseLayout, layout, parse_environment

CONF = "modulepath = site-modules:modules\nmanifest = manifests/site.pp\nconfig_version = x\n"


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A release with all files of a Puppet environment, and a second site manifest."""
    for name in ("site-modules", "modules", "manifests"):
        (tmp_path / name).mkdir()
    (tmp_path / "environment.conf").write_text(CONF)
    for name in ("manifests/site.pp", "own.pp"):
        (tmp_path / name).write_text("")
    return tmp_path


def test_without_a_moduledir_the_environment_conf_is_not_used(release: Path) -> None:
    found = layout(release, "")
    assert (found.modulepath, found.site_manifest) == (("",), "")
    assert found.notes == ("environment.conf is not used: the manifest has no moduledir",)
    (release / "environment.conf").unlink()
    assert layout(release, "") == ReleaseLayout(modulepath=("",))


def test_a_moduledir_makes_a_control_repository(release: Path) -> None:
    found = layout(release, "modules")
    assert found.modulepath == ("site-modules", "modules")
    assert found.site_manifest == "manifests/site.pp"
    (release / "environment.conf").unlink()
    found = layout(release, "modules")
    assert (found.modulepath, found.site_manifest) == (("modules",), "manifests")


@pytest.mark.parametrize("moduledir", ["", "modules"])
def test_the_site_manifest_of_the_manifest_is_used(release: Path, moduledir: str) -> None:
    assert layout(release, moduledir, "own.pp").site_manifest == "own.pp"
    with pytest.raises(InvalidInputError, match="no gone"):
        layout(release, moduledir, "gone.pp")


@pytest.mark.parametrize(
    ("text", "modulepath", "note"),
    [
        ("modulepath = site:modules\nmodulepath = b\n", "site:modules", "line 2 sets modulepath"),
        ("modulepath = site\n[x]\nmodulepath = b\nmanifest = y\n", "site", "line 3 is in a"),
        ("[x]\nmodulepath = b\n[main]\nmodulepath = site\n", "site", "line 2 is in a section"),
        ("[main]\nmodulepath = 'site:modules'\n", "site:modules", ""),
    ],
)
def test_settings_that_puppet_does_not_read_do_not_count(
    text: str, modulepath: str, note: str
) -> None:
    conf = parse_environment(text)
    assert (":".join(conf.modulepath), conf.manifest) == (modulepath, "manifests")
    assert [note in one for one in conf.notes[:1]] == [True] * bool(note)

"""Versions, ranges and requirements as in Puppet's metadata.json, and ranges in Puppetfiles."""

import json
from pathlib import Path

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.node.releases.module_metadata import ModuleVersion, Range, newest, unmet

VERSIONS = ("0.9.0", "1.0.0", "1.2.0", "1.2.9", "1.10.0", "2.0.0-rc1", "2.0.0", "3.1.4")


def best(text: str) -> str | None:
    return newest(Range.parse(text, where=""), [ModuleVersion(v) for v in VERSIONS])


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("latest", "3.1.4"),
        ("1.2.0", "1.2.0"),
        ("= 1.2.0", "1.2.0"),
        (">= 1.0.0 < 2.0.0", "1.10.0"),
        (">=1.0.0 <2.0.0", "1.10.0"),
        ("> 1.2.0 < 1.2.9", None),
        ("<= 1.2.9", "1.2.9"),
        ("1.x", "1.10.0"),
        ("1.2.x", "1.2.9"),
        ("1", "1.10.0"),
        ("x", "3.1.4"),
        ("~ 1.2", "1.2.9"),
        ("~> 1.2.0", "1.2.9"),
        ("^1.2.0", "1.10.0"),
        ("^0.9.0", "0.9.0"),
        ("1.0.0 - 1.2.9", "1.2.9"),
        ("< 1.0.0 || 2.x", "2.0.0"),
        (">= 2.0.0-rc1 < 2.0.0", "2.0.0-rc1"),
        (">= 1.0.0-rc1 < 2.0.0", "1.10.0"),
        ("1.0.0-rc1 - 2.0.0-rc1", "2.0.0-rc1"),
        ("^2.0.0-alpha", "2.0.0"),
        (">= 4.0.0", None),
    ],
)
def test_the_newest_version_in_a_range_is_chosen(text: str, version: str | None) -> None:
    assert best(text) == version


@pytest.mark.parametrize(
    "text", ["", "1.2.3.4", "newest", "> ", ">= 1 <", "01.2.3.", "||", "1" * 300]
)
def test_an_invalid_range_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="is not a version or a range"):
        Range.parse(text, where="")


@pytest.mark.parametrize("text", ["1.2", "v1.2.3", "1.2.3-", "1.02.3", "1.2.3\n", ""])
def test_an_invalid_version_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="is not a version"):
        ModuleVersion.parse(text, where="")


def test_versions_are_ordered_by_semantic_versioning() -> None:
    names = ["1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-beta.2", "1.0.0-beta.11", "1.0.0-rc.1", "1.0.0"]
    mixed = sorted(names)
    assert sorted(mixed, key=lambda name: ModuleVersion(name).order) == names


# As modules of Vox Pupuli, of the Forge, and those that are for both have it.
OPENVOX_8 = {"name": "openvox", "version_requirement": ">= 8.19.0 < 9.0.0"}
PUPPET_7 = {"name": "puppet", "version_requirement": ">= 7.0.0 < 8.0.0"}
PUPPET_8 = {"name": "puppet", "version_requirement": ">= 8.0.0 < 9.0.0"}
ANY = {"name": "openvox"}


@pytest.mark.parametrize(
    ("requirements", "has", "lacks"),
    [
        ([PUPPET_8], ["puppet 8.10.0", "openvox 8.28.1"], ["puppet 7.23.0", "openvox 9.0.0-rc1"]),
        ([OPENVOX_8], ["openvox 8.28.1"], ["openvox 9.0.0", "puppet 8.10.0", "puppet 7.23.0"]),
        ([PUPPET_7, OPENVOX_8], ["puppet 7.23.0", "openvox 8.28.1"], ["puppet 8.10.0"]),
        ([OPENVOX_8, PUPPET_7], ["puppet 7.23.0", "openvox 8.28.1"], ["openvox 9.0.0"]),
        (
            [{"name": "openvox", "version_requirement": ">= 9.0.0"}],
            ["openvox 9.0.0-rc1"],
            ["openvox 8.28.1"],
        ),
        ([{"name": "pe", "version_requirement": "3.x"}], ["puppet 8.10.0", "openvox 9.0.0"], []),
        ([ANY], ["puppet 8.10.0", "openvox 9.0.0"], []),
        ([{"name": "puppet", "version_requirement": "?"}], ["puppet 8.10.0"], []),
        ([], ["puppet 7.23.0", "openvox 9.0.0"], []),
        (None, ["puppet 7.23.0", "openvox 9.0.0"], []),
        ("openvox", ["openvox 9.0.0"], []),
    ],
)
def test_the_requirement_of_the_installed_implementation_counts_and_else_the_others(
    requirements: object, has: list[str], lacks: list[str], tmp_path: Path
) -> None:
    (tmp_path / "metadata.json").write_text(json.dumps({"requirements": requirements}))

    def fits(installed: str) -> bool:
        implementation, _, version = installed.partition(" ")
        modules = {"a": tmp_path, "b": tmp_path}
        return not unmet(modules, implementation=implementation, version=version)

    assert {text: fits(text) for text in has + lacks} == {
        **dict.fromkeys(has, True),
        **dict.fromkeys(lacks, False),
    }


def test_modules_with_the_same_unmet_requirement_share_a_line(tmp_path: Path) -> None:
    for name, requirement in {"apt": OPENVOX_8, "ntp": OPENVOX_8, "web": PUPPET_7}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "metadata.json").write_text(json.dumps({"requirements": [requirement]}))
    modules = {name: tmp_path / name for name in ("web", "ntp", "apt")}
    here = "and this machine has OpenVox 9.0.0 (lock versions that are made for it)"
    assert unmet(modules, implementation="openvox", version="9.0.0") == (
        f"apt, ntp: metadata.json requires openvox >= 8.19.0 < 9.0.0, {here}",
        f"web: metadata.json requires puppet >= 7.0.0 < 8.0.0, {here}",
    )


def test_metadata_forges_no_line_of_a_check(tmp_path: Path) -> None:
    name, version = "x/y\nsound\n\x1b[2J\u202e", ">= 1\n"
    asked = [{"name": name, "version_requirement": version}]
    (tmp_path / "metadata.json").write_text(json.dumps({"dependencies": asked}))
    (problem,) = unmet({"m": tmp_path}, implementation="openvox", version="8.1.0")
    assert problem.startswith(r"m: metadata.json requires x/y\x0asound\x0a\x1b[2J\u202e >= 1\x0a,")

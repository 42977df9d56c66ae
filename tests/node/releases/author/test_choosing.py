"""The module that each entry of a Puppetfile becomes, or the reason why it is left."""

import pytest

from localpuppet.node.releases.author.puppetfile import parse
from localpuppet.node.releases.author.puppetfile_import import EntryChoice, ImportRules, choose

URL = "https://git.example.net/ntp.git"
A, B = "a" * 40, "b" * 40
REFS = {
    "HEAD": A,
    "refs/heads/main": A,
    "refs/heads/v1.2.0": B,
    "refs/tags/v1.2.0": A,
    "refs/tags/v1.10.0": A,
    "refs/tags/stable": A,
    "refs/tags/-odd": A,
    "refs/tags/v0.9": B,
}


def chosen(
    text: str, refs: dict[str, str] | None = None, unasked: str = "", **rules: bool
) -> EntryChoice:
    (entry,) = parse(text).entries
    more = {"allow_file": False, "use_tags": False, "asking": refs is not None, **rules}
    rules_of_import = ImportRules(paths=("modules",), **more)
    return choose(entry, rules=rules_of_import, refs=refs, unasked=unasked)


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("mod 'acme/ntp', '1.0.0'", {"forge": "acme/ntp", "version": "1.0.0"}),
        ("mod 'acme-ntp', :latest", {"forge": "acme/ntp", "version": "latest"}),
        ("mod 'acme/ntp'", {"forge": "acme/ntp", "version": "latest"}),
        ("mod 'acme/ntp', type: 'forge', version: '1.x'", {"forge": "acme/ntp", "version": "1.x"}),
        (f"mod 'ntp', git: '{URL}', tag: 'v7'", {"git": URL, "tag": "v7"}),
        (f"mod 'ntp', git: '{URL}', branch: 'x'", {"git": URL, "branch": "x"}),
        (f"mod 'ntp', git: '{URL}', commit: '{B}'", {"git": URL, "commit": B}),
        (f"mod 'ntp', git: '{URL}', ref: '{B}'", {"git": URL, "commit": B}),
        (f"mod 'ntp', git: '{URL}', ref: 'v1.2.0'", {"git": URL, "tag": "v1.2.0"}),
        (f"mod 'ntp', git: '{URL}', ref: 'origin/main'", {"git": URL, "branch": "main"}),
        (f"mod 'ntp', git: '{URL}', ref: '{B[:7]}'", {"git": URL, "commit": B}),
        (f"mod 'ntp', git: '{URL}'", {"git": URL, "branch": "main"}),
        (f"mod 'ntp', type: 'git', source: '{URL}', version: 'v0.9'", {"git": URL, "tag": "v0.9"}),
        (
            f"mod 'ntp', git: '{URL}', branch: :control_branch, default_branch: 'main'",
            {"git": URL, "branch": "main"},
        ),
        (f"mod 'ntp', git: 'git{URL[5:]}', tag: 'v1'", {"git": URL, "tag": "v1"}),
        (f"mod 'ntp', git: 'http{URL[5:]}', tag: 'v1'", {"git": URL, "tag": "v1"}),
        (f"mod 'ntp', git: '{URL}', tag: 'v1', install_path: 'modules'", {"git": URL, "tag": "v1"}),
        (
            f"mod 'ntp', git: '{URL}', tag: 'v1', install_path: './modules/'",
            {"git": URL, "tag": "v1"},
        ),
        (f"moduledir 'modules'\nmod 'ntp', git: '{URL}', tag: 'v1'", {"git": URL, "tag": "v1"}),
        (f"mod 'ntp', git: '{URL}', tag: 'v1', exclude_spec: true", {"git": URL, "tag": "v1"}),
    ],
)
def test_entries_that_become_modules(text: str, fields: dict[str, str]) -> None:
    choice = chosen(text, REFS)
    assert (choice.left, choice.name) == ("", "ntp")
    assert choice.module is not None
    assert choice.module.fields == fields


@pytest.mark.parametrize(
    ("ref", "notes"),
    [
        ("branch: 'main'", ("default_branch is not kept",)),
        ("ref: 'origin/main'", ("default_branch is not kept",)),
        (f"commit: '{B}'", ()),
        (f"ref: '{B[:7]}'", ()),
        ("tag: 'v7'", ()),
        ("branch: :control_branch", (":control_branch has no meaning in a release: x is taken",)),
    ],
)
def test_a_default_branch_matters_only_for_branches(ref: str, notes: tuple[str, ...]) -> None:
    text = f"mod 'ntp', git: '{URL}', {ref}, default_branch: 'x'"
    assert chosen(text, REFS).notes == notes


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("mod 'ntp', :svn => 'https://x/y'", "Subversion"),
        ("mod 'ntp', :local => true", "is local"),
        ("mod 'ntp', type: 'tarball', source: 'https://x/y.tgz'", "tarball"),
        ("mod 'ntp', '1.0.0'", "is not a module of the Forge"),
        ("mod 'acme/ntp', 'absent'", "is not a version"),
        ("mod 'acme/NTP', '1.0.0'", "invalid module name"),
        ("mod 'ntp', git: '/srv/git/ntp'", "or 'allow_file_urls: true' in localpuppet.yaml"),
        ("mod 'ntp', git: 'https://me:s3cret@x.example/y'", "holds a password"),
        (f"mod 'ntp', git: '{URL}', ref: 'gone'", "has no gone"),
        (f"mod 'ntp', git: '{URL}', ref: 'ccccccc'", "write all 40 digits"),
        (f"mod 'ntp', git: '{URL}', branch: :control_branch", "own branch"),
        (f"mod 'ntp', git: '{URL}', tag: 'v1', install_path: 'data'", "not on the modulepath"),
        (f"mod 'ntp', git: '{URL}', tag: 'v1', install_path: ''", "'', the top of the release"),
        (f"mod 'ntp', git: '{URL}', tag: 'v1', install_path: './'", "the top of the release"),
        (f"mod 'ntp', git: '{URL}', tag: 'v1', install_path: '/'", "goes to / by install_path"),
        (f"mod 'ntp', git: '{URL}', tag: 'v1', install_path: '/modules'", "goes to /modules"),
        (f"mod 'ntp', git: '{URL}', tag: 'v1', install_path: '../modules'", "goes to ../modules"),
        (f"moduledir 'bolt'\nmod 'ntp', git: '{URL}', tag: 'v1'", "goes to bolt"),
        (f"moduledir ''\nmod 'ntp', git: '{URL}', tag: 'v1'", "the top of the release"),
        (f"mod 'ntp', git: '{URL}', tag: 'v1', path: 'puppet'", "is a directory of its repository"),
        (f"mod 'ntp', git: '{URL}', tag: '-v1'", "starts with '-'"),
    ],
)
def test_entries_that_are_left_have_a_reason(text: str, why: str) -> None:
    choice = chosen(text, REFS)
    assert choice.module is None
    assert why in choice.left
    assert "s3cret" not in choice.left


def test_without_an_answer_a_ref_is_classified_by_its_form() -> None:
    assert chosen(f"mod 'ntp', git: '{URL}', ref: 'v1.2.0'").pinned_by == "tag v1.2.0"
    unsure = chosen(f"mod 'ntp', git: '{URL}', ref: 'stable'")
    assert (unsure.left, unsure.module) == ("", None)
    assert unsure.notes == ("its repository was not asked what that is",)


def test_the_reason_of_a_repository_that_does_not_answer_is_reported() -> None:
    refused = "did not answer: connection refused"
    version = chosen(f"mod 'ntp', git: '{URL}', ref: 'v1.2.0'", unasked=refused)
    nothing = chosen(f"mod 'ntp', git: '{URL}'", unasked=refused)
    silent = f"and its repository {refused}"
    assert version.notes == (f"v1.2.0 is taken as a tag, {silent}",)
    assert nothing.notes == (f"names no ref: master is taken, {silent}",)


@pytest.mark.parametrize(
    ("option", "tag"),
    [("branch: 'main'", "v1.10.0"), (f"commit: '{B}'", "v0.9"), ("ref: 'stable'", "stable")],
)
def test_use_tags_chooses_the_tag_at_the_same_commit(option: str, tag: str) -> None:
    choice = chosen(f"mod 'ntp', git: '{URL}', {option}", REFS, use_tags=True)
    assert choice.module is not None
    assert choice.module.fields == {"git": URL, "tag": tag}


def test_use_tags_leaves_modules_without_a_tag() -> None:
    assert "only tags" in chosen("mod 'acme/ntp', '1.0.0'", REFS, use_tags=True).left
    assert (
        "no tag is at" in chosen(f"mod 'ntp', git: '{URL}', branch: 'x'", REFS, use_tags=True).left
    )

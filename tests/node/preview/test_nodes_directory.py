"""A directory of captures: files of nodes, files written by hand, facterdb's layout."""

import hashlib
import os
from pathlib import Path

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.node.preview.nodes_directory import NodesDirectory
from localpuppet.node.preview.release_index import States, TreeStates

HAND_WRITTEN = """
facts:
  os: {family: Debian}
  networking: {fqdn: db1.example.org}
classes: [app, ntp]
parameters:
  role: db
layers: [db]
"""


def problem(directory: Path) -> str:
    nodes = NodesDirectory(directory)
    with pytest.raises(InvalidInputError) as caught:
        for file in nodes.files():
            nodes.read(file)
    return str(caught.value)


def test_each_file_of_any_format_is_a_node(tmp_path: Path) -> None:
    (tmp_path / "web1.example.org.json").write_text('{"facts": {"kernel": "Linux"}}')
    (tmp_path / "db1.yaml").write_text(HAND_WRITTEN)
    (tmp_path / "db2.example.org.yml").write_text("facts: {}\n")
    (tmp_path / "4.2").mkdir()
    (tmp_path / "4.2" / "windows-2012 r2-x86_64.facts").write_text('{"kernel": "windows"}')
    (tmp_path / "debian-12-x86_64.facts").write_text('{"kernel": "Linux"}')
    for ignored in ("README.md", ".hidden.json", "notes/x.json", "x/y.facts"):
        (tmp_path / ignored).parent.mkdir(exist_ok=True)
        (tmp_path / ignored).write_text("?")
    nodes = NodesDirectory(tmp_path)
    files = nodes.files()
    assert [file.node for file in files] == [
        "db1",
        "db2.example.org",
        "debian-12-x86-64",
        "web1.example.org",
        "windows-2012-r2-x86-64.facter4.2",
    ]
    captures = {file.node: nodes.read(file) for file in files}
    db1 = captures[files[0].node]
    known = TreeStates()
    assert (
        nodes.nodes(known)[0].capture
        == hashlib.sha256((tmp_path / "db1.yaml").read_bytes()).digest()
    )
    assert db1.layers == ("db",)
    assert (db1.facts["os"], db1.data.parameters) == ({"family": "Debian"}, {"role": "db"})
    assert set(db1.data.classes) == {"app", "ntp"}
    assert captures[files[4].node].facts == {"kernel": "windows"}


def test_two_files_of_a_node_are_refused(tmp_path: Path) -> None:
    (tmp_path / "web1.json").write_text('{"facts": {}}')
    (tmp_path / "web1.yaml").write_text("facts: {}")
    assert problem(tmp_path) == f"{tmp_path}/web1.yaml: is of the same node as web1.json"


@pytest.mark.parametrize("name", ["Web1.json", "a_b.json", "-x.yaml", "a..b.json", "x y.json"])
def test_a_file_whose_name_is_not_a_node_name_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text('{"facts": {}}')
    assert problem(tmp_path).startswith(f"{tmp_path}/{name}: node name")


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("web1.json", '{"kernel": "Linux", "os": {}}', "write them below 'facts'"),
        ("web1.json", '{"facts": {}, "node": "web2"}', "must be web1"),
        ("web1.json", "{", "is not JSON"),
        ("web1.yaml", "facts: []", "facts: must be a mapping, not a list"),
        ("web1.yaml", "classes: {}", "the key 'facts' is missing"),
        ("web1.yaml", "facts: &a {b: *a}", "web1.yaml"),
        ("web1.yaml", "facts: {}\nfoo: 1", "unknown key 'foo'"),
        ("web1.facts", "[]", "not a JSON object"),
    ],
)
def test_a_message_shows_no_value(tmp_path: Path, name: str, text: str, words: str) -> None:
    (tmp_path / name).write_text(text)
    message = problem(tmp_path)
    assert message.startswith(f"{tmp_path}/{name}: ")
    assert words in message


def test_a_fifo_directory_or_dangling_link_is_refused_and_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "web1.json")
    assert problem(tmp_path) == f"{tmp_path}/web1.json: is not a regular file"
    (tmp_path / "web1.json").unlink()
    (tmp_path / "web1.json").mkdir()
    assert "is not a regular file" in problem(tmp_path)
    (tmp_path / "web1.json").rmdir()
    (tmp_path / "web1.json").symlink_to("nowhere")
    assert "web1.json: cannot be read: No such file" in problem(tmp_path)


@pytest.mark.parametrize("name", ["web1.facts", "web1.json", "4.2/web1.facts"])
def test_a_link_to_a_file_of_the_job_is_refused_by_name(tmp_path: Path, name: str) -> None:
    job, nodes = tmp_path / "job", tmp_path / "nodes"
    (nodes / name).parent.mkdir(parents=True)
    job.mkdir()
    (job / "config.json").write_text('{"facts": {"auth": "SECRET"}}')
    up = "../" * (name.count("/") + 1)
    for text in (f"{up}job/config.json", str(job / "config.json"), f"{up}missing", "/missing"):
        (nodes / name).symlink_to(text)
        assert problem(nodes).startswith(f"{nodes}/{name}: is a link that leads out of its tree (")
        (nodes / name).unlink()


def test_a_link_to_a_capture_of_the_directory_is_followed(tmp_path: Path) -> None:
    (tmp_path / "web1.json").write_text('{"facts": {"kernel": "Linux"}}')
    (tmp_path / "web2.json").symlink_to("web1.json")
    nodes = NodesDirectory(tmp_path).nodes(TreeStates())
    assert [node.load().facts for node in nodes] == [{"kernel": "Linux"}] * 2


def test_a_directory_of_a_work_tree_that_leads_out_of_it_is_refused(tmp_path: Path) -> None:
    job, work_tree = tmp_path / "job", tmp_path / "work"
    for directory in (job, work_tree):
        directory.mkdir()
    (job / "web1.json").write_text('{"facts": {}}')
    (work_tree / "nodes").symlink_to("../job")
    with pytest.raises(InvalidInputError, match="nodes: is a link that leads out"):
        NodesDirectory(work_tree / "nodes", inside=work_tree).nodes(TreeStates())
    assert len(NodesDirectory(work_tree / "nodes").nodes(TreeStates())) == 1  # the user's own
    version = work_tree / "own"
    version.mkdir()
    (version / "4.2").symlink_to("../../job")
    (job / "web1.facts").write_text("{}")
    with pytest.raises(InvalidInputError, match="has no files of nodes"):
        NodesDirectory(version).files()


def test_an_entry_that_cannot_be_used_concerns_its_node_only(tmp_path: Path) -> None:
    (tmp_path / "good.json").write_text('{"facts": {}}')
    (tmp_path / "big.json").write_text('{"facts": {"a": "' + "x" * 100 + '"}}')
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "link.yaml").symlink_to("/etc/passwd")
    (tmp_path / "twice.json").write_text('{"facts": {}}')
    (tmp_path / "twice.yaml").write_text("facts: {}")
    (tmp_path / "Upper.json").write_text('{"facts": {}}')
    Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\n.json")).write_text('{"facts": {}}')
    os.mkfifo(tmp_path / "fifo.json")
    known = _Known()
    problems = {}
    for _ in range(2):  # the second time, digests may be known
        for node in NodesDirectory(tmp_path, limit=100).nodes(known):
            node.name.encode()
            try:
                node.load()
                problems[node.name] = ""
            except InvalidInputError as error:
                problems[node.name] = str(error).removeprefix(f"{tmp_path}/")
    expected = {
        "good": "",
        "big": "big.json: is too large: the limit is 100 bytes",
        "broken": "broken.json: is not JSON",
        "fifo": "fifo.json: is not a regular file",
        "link": "link.yaml: is a link that leads out of its tree",
        "twice": "twice.yaml: is of the same node as twice.json",
        "Upper": "Upper.json: node name 'Upper' must be in lower case",
        "\\xff\\x0a": "\\xff\\x0a.json: node name",
    }
    assert problems.keys() == expected.keys()
    for name, problem_ in expected.items():
        assert problems[name].startswith(problem_), name
        assert bool(problems[name]) == bool(problem_), name


def test_an_empty_or_missing_directory_names_the_cure(tmp_path: Path) -> None:
    assert "has no files of nodes (run 'localpuppet capture'" in problem(tmp_path)
    assert "cannot be read: No such file or directory" in problem(tmp_path / "none")


class _Known(TreeStates):
    def __init__(self) -> None:
        self.states: dict[str, States] = {}

    def get(self, tree: str) -> States | None:
        return self.states.get(tree)

    def put(self, tree: str, states: States) -> None:
        self.states[tree] = states


def test_a_file_is_read_again_only_if_its_status_differs(tmp_path: Path) -> None:
    known = _Known()
    for name in ("web1", "web2"):
        (tmp_path / f"{name}.json").write_text('{"facts": {}}')
    first = [node.capture for node in NodesDirectory(tmp_path).nodes(known)]
    assert known.states == {}  # the files may change again within the same timestamp
    name = f"captures {tmp_path}"
    files = NodesDirectory(tmp_path).files()
    known.put(name, {file.node: f"{file.status} {'0' * 64}" for file in files})
    assert [node.capture for node in NodesDirectory(tmp_path).nodes(known)] == [bytes(32)] * 2
    (tmp_path / "web2.json").write_text('{"facts": {}} ')
    (tmp_path / "web2.json").write_text('{"facts": {}}')
    assert [node.capture for node in NodesDirectory(tmp_path).nodes(known)] == [bytes(32), first[1]]

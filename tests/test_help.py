"""The help of every command: its form, on a narrow and on a wide terminal."""

import json
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from localpuppet.fleet.trust.policy import ACTIONS
from localpuppet.main import EVERYDAY, cli, main
from localpuppet.node.cli.command import EXITS, Command, CommandGroup
from tests.rigs.commands import COMMANDS, parse_words, problem_of, words_of

ROOT = Path(__file__).parents[1]
WIDTHS = (80, 100)
SHORT = 60
NAMES = [name for name, command in COMMANDS.items() if not command.hidden]


@cache
def help_of(name: str, width: int = 80) -> str:
    done = CliRunner().invoke(
        cli, [*name.split(), "--help"], prog_name="localpuppet", terminal_width=width
    )
    assert done.exit_code == 0, done.output
    return done.output


def sections(text: str) -> dict[str, str]:
    """Return title → body of a help, in order; the text before the first title has none."""
    found = {"": ""}
    for line in text.splitlines():
        title = re.fullmatch(r"([A-Z][^:]*):", line)
        if title:
            found[title[1]] = ""
        else:
            found[[*found][-1]] += f"{line}\n"
    return found


@pytest.mark.parametrize("name", NAMES)
def test_help_fits_the_terminal_and_begins_with_one_short_sentence(name: str) -> None:
    for width in WIDTHS:
        assert [line for line in help_of(name, width).splitlines() if len(line) > width] == []
    command = COMMANDS[name]
    short = command.get_short_help_str()
    assert 0 < len(short) <= SHORT
    assert re.fullmatch(r"[A-Z][a-z]+,? .*[^.]", short)
    assert (command.help or "").startswith(f"{short}.")
    assert f"\n  {short}.\n" in help_of(name)


@pytest.mark.parametrize("name", NAMES)
def test_help_has_options_examples_and_known_exit_codes_in_this_order(name: str) -> None:
    titles = [*sections(help_of(name))]
    command = COMMANDS[name]
    assert isinstance(command, Command)
    with click.Context(command) as ctx:
        groups = [title for title, _ in command.option_groups(ctx)]
    below = [*command.sections] if isinstance(command, CommandGroup) else []
    below = below if name else ["Every day", "All other commands"]
    assert titles == ["", *below, *groups, "Examples", "Exit codes"]
    assert command.exit_codes.keys() <= EXITS.keys()
    body = sections(help_of(name))["Exit codes"]
    codes = re.findall(r"^  (\d+) +\S", body, re.MULTILINE)
    assert [int(code) for code in codes] == [*command.exit_codes]


@pytest.mark.parametrize("name", NAMES)
def test_each_example_can_be_parsed_and_most_name_the_command(name: str) -> None:
    command = COMMANDS[name]
    assert isinstance(command, Command)
    examples = re.sub(r"\\\n\s*", "", command.examples).splitlines()
    called = [words for line in examples for words in words_of(line)]
    assert [problem for words in called if (problem := problem_of(words))] == []
    path = name.split()
    assert any(words[: len(path)] == path for words in called)


@pytest.mark.parametrize("name", NAMES)
def test_every_option_has_a_sentence(name: str) -> None:
    for option in COMMANDS[name].params:
        if isinstance(option, click.Option) and not option.hidden:
            text = option.help or ""
            assert re.match(r"([A-Z].*|\w+( for|:) .*)[.)\]]", text), f"not a sentence: {text!r}"
            repeats = option.multiple and not option.is_flag
            assert repeats == ("(repeatable)" in text), "'(repeatable)' if it may be repeated"
            assert option.metavar != "TIME" or "3d" in help_of(name)


def test_man_pages_are_ascii_and_their_quotes_can_be_pasted(tmp_path: Path) -> None:
    """Terminals without UTF-8 lose other characters; troff makes plain quotes typographic."""
    script = ROOT / "scripts" / "packages" / "man_pages.py"
    subprocess.run([sys.executable, script, tmp_path, "2026-11-27"], check=True)
    pages = {page.name: page.read_text() for page in tmp_path.glob("man*/*")}
    assert "localpuppet-apply.8" in pages
    settings = json.loads(
        (ROOT / "localpuppet/base/formats/schemas/settings.schema.json").read_text()
    )
    for key in settings["properties"]:
        assert f"\n.SS {key}\n" in pages["localpuppet.yaml.5"].replace("\\-", "-")
    for action in ACTIONS:
        assert re.search(rf"^\.B .*\b{action}\b", pages["localpuppet-policy.5"], re.MULTILINE)
    assert "\n.B app\n" in pages["localpuppet-input.5"]
    for name, text in pages.items():
        assert text.isascii(), name
        body = [line for line in text.splitlines() if not line.startswith(".TH")]
        assert not {"'", "`", "^", "~"} & {*"".join(body)}, name


def test_the_overview_describes_ten_commands_and_names_all_others() -> None:
    shown = sections(help_of(""))
    described = re.findall(r"^  ([a-z-]+) ", shown["Every day"], re.MULTILINE)
    assert described == [*EVERYDAY]
    assert len(described) == 10
    # click also breaks a line at a hyphen of a name.
    unwrapped = re.sub(r"-\n +", "-", shown["All other commands"])
    others = re.findall(r"[a-z-]+(?=,|\n)", unwrapped)
    known = [name for names in cli.sections.values() for name in names if name != "call"]
    assert sorted(described + others) == sorted(known)


@pytest.mark.parametrize(
    ("words", "right"),
    [
        ("deploy production", "stage"),
        ("help", "--help"),
        ("version", "--version"),
        ("-t", "apply"),
        ("agent --test", "apply"),
        ("--dry-run", "apply --noop"),
        ("apply --dry-run", "--noop"),
        ("apply --debug", "apply -- --debug"),
        ("puppetfile install", "release lock"),
        ("ping", "nodes"),
        ("find web", "query"),
        ("runall 5", "rollout run"),
        ("dashboard", "web"),
        ("release install", "release lock"),
        ("release deploy", "stage"),
        ("rollout abort", "rollout stop"),
        ("keys sign web01", "keys trust"),
        ("agent --disable x", "disable"),
        ("trigger --noop web01", "runonce --noop"),
        ("rollout plan --noop", "rollout run --noop"),
        ("status --format json", "--json"),
        ("trigger -W role=web", "--query"),
        ("report --targets web01", "--node"),
    ],
)
def test_a_word_of_another_program_is_answered_with_the_right_one(
    words: str, right: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 2
    message = capsys.readouterr().err
    assert f"run 'localpuppet {right}'" in message or f"did you mean {right!r}?" in message
    assert right.startswith("-") or problem_of(right.split()) == ""


@pytest.mark.parametrize(
    ("words", "old", "new"),
    [
        ("preview --nodes missing", "--nodes", "--captures"),
        ("preview --nodes=missing", "--nodes", "--captures"),
        ("query x=y --facts os --root missing", "--facts", "--show"),
        ("report -l 5 --root missing", "-l", "-n"),
        ("rollout run --nodes a,b --root missing", "--nodes", "NODE"),
        ("rollout plan --nodes=a --root missing", "--nodes", "NODE"),
        ("rollout plan --catalogs --order none", "--catalogs", "implied by --release"),
    ],
)
def test_an_option_answers_by_its_earlier_name(
    words: str, old: str, new: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) != 0
    message = capsys.readouterr().err
    assert f"'{old}' is now '{new}', and ends with version 0.2" in message
    assert "unknown option" not in message


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("history --node web01", "write the names of nodes without an option"),
        ("trigger --targets web01", "write the names of nodes without an option"),
        ("trigger --query role = web", "'=' is no node: write --query 'role = web'"),
        ("trigger role=web", "'role=web' is no node: write --query 'role=web'"),
        ("rollback r1", "the command is 'localpuppet rollback [OPTIONS]'"),
        ("release diff", "the command is 'localpuppet release diff [OPTIONS] BEFORE AFTER'"),
        ("disable", "'-m' / '--message': The reason, in one line"),
        ("keys ls", "unknown command 'ls': did you mean 'list'?"),
        ("logs -l 5", "unknown option '-l'"),
        ("init --source control --release r1", "--source: is neither a directory nor a URL"),
        ("release import --dry-run /", "/Puppetfile: file not found"),
    ],
)
def test_a_mistake_in_a_line_of_words_is_answered_with_the_cure(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 2
    assert message in capsys.readouterr().err


def test_without_a_command_the_help_goes_to_a_pipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    shown = capsys.readouterr()
    assert shown.out.startswith("Usage: localpuppet")
    assert shown.err == "Usage: localpuppet [OPTIONS] COMMAND [ARGS]...\n"


@pytest.mark.parametrize(
    "words",
    [
        "--json --root @ release list",
        "release list --json --root @",
        "release --root @ list --json",
    ],
)
def test_options_of_the_program_work_before_and_after_the_command(
    words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = words.replace("@", str(tmp_path)).split()
    assert main(given) == 0
    assert json.loads(capsys.readouterr().out) == {"schema": 1, "releases": []}
    assert main(["--json", "completion", "bash"]) == 2
    assert "this command has no --json" in capsys.readouterr().err


def test_a_colour_behind_the_command_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["rollout", "status", "--color", "always", "--root", "/nonexistent"]) != 0
    assert "\x1b[31m" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("aply", "'apply' or 'policy'"),
        ("stat", "'status' or 'stage'"),
        ("publish", "'inventory publish'"),
        ("keys trsut", "'trust'"),
        ("status --wate", "'--wait' or '--wait-timeout'"),
        ("disable --onwer x -m y", "'--owner', '--for' or '--json'"),
        ("xyzzy", ""),
    ],
)
def test_an_unknown_command_or_option_gets_up_to_three_suggestions(
    words: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 2
    message = capsys.readouterr().err
    assert (f": did you mean {hint}? (see " in message) if hint else "did you mean" not in message


@pytest.mark.parametrize(
    "words", ["apply --timeout", "keys trust", "rollout run --window x", "disable", "bus"]
)
def test_a_usage_error_names_the_command(words: str) -> None:
    with pytest.raises(click.UsageError) as error:
        parse_words(words.split())
    command = [word for word in words.split() if not word.startswith("-") and word != "x"]
    assert error.value.ctx is not None
    assert error.value.ctx.command_path == " ".join(["localpuppet", *command])


def test_release_commands_take_the_clone_around_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "manifest.yaml").write_text("modulepath: []\n")
    below = tmp_path / "data" / "nodes"
    below.mkdir(parents=True)
    monkeypatch.chdir(below)
    assert main(["release", "lock", "--root", str(tmp_path)]) == 0
    assert (tmp_path / "manifest.lock").exists()
    assert main(["release", "sign", "--root", str(tmp_path), "r1"]) != 0
    assert f"{tmp_path}: " in capsys.readouterr().err
    assert main(["release", "tag", "a", "b", "c"]) == 2
    assert "more than [DIR] TAG: c" in capsys.readouterr().err

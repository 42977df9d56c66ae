"""The ENC of the site, as a real program."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from localpuppet.base.errors import EncError, InvalidInputError
from localpuppet.base.formats.documents import Documents
from localpuppet.base.formats.names import NodeName
from localpuppet.base.machine.processes import SystemProcesses
from localpuppet.node.enc.document import EncData
from localpuppet.node.enc.site_command import EncCommand, parse_command
from tests.rigs.limited import limited

NODE = NodeName("web01.example.com")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    return tmp_path / "enc.py"


def write(script: Path, body: str) -> str:
    script.write_text(f"#!{sys.executable}\nimport os, sys, time\n{body}")
    script.chmod(0o755)
    return str(script)


def ask(command: str, *, timeout: float = 60) -> EncData:
    enc = EncCommand(argv=parse_command(command, where="enc"), timeout=timeout, env={})
    return enc.ask(NODE, processes=SystemProcesses(), documents=Documents(None))


def test_an_answer_of_the_maximum_size_is_accepted(script: Path) -> None:
    size = 1024 * 1024
    body = "text = 'classes: [{}]\\n'.format(sys.argv[1].split('.')[0])\n"
    body += f"sys.stdout.write(text + '#' * ({size} - len(text) - 1) + '\\n')\n"
    assert list(ask(write(script, body)).classes) == ["web01"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("while True: os.write(1, b'x' * 65536)", "printed more than 1048576 bytes"),
        ("os.write(1, b'x' * 2_000_000); sys.exit(3)", "printed more than 1048576 bytes"),
        ("os.kill(os.getpid(), 9)", "was killed by signal 9"),
        ("os.write(2, b'no such node'); sys.exit(3)", "exited 3: no such node"),
        ("os.write(2, b'x' * 3_000_000 + b' the reason'); sys.exit(3)", "exited 3: …x"),
    ],
)
def test_an_error_names_the_failure_of_an_enc(script: Path, body: str, message: str) -> None:
    with pytest.raises(EncError, match=message):
        ask(write(script, body))


def test_large_error_output_is_not_stored(script: Path) -> None:
    body = "for _ in range(6000): os.write(2, b'x' * 65536)\n"
    body += "print(f'parameters: {{held: {os.fstat(2).st_size}}}')"
    asked = (
        "from tests.node.enc.test_command import ask; "
        f"print(ask({write(script, body)!r}).parameters)"
    )
    done = limited(asked, seconds=20)
    assert done.code == 0, done.err
    held = ast.literal_eval(done.out)["held"]
    assert held < 1024 * 1024, "the ENC wrote 375 MiB, twice the memory limit"


@pytest.mark.parametrize("name", ["enable-puppet8", "Rack", "ssh keys", "a::b", "trusted"])
def test_an_unreachable_parameter_is_left_out_with_a_warning(script: Path, name: str) -> None:
    body = f"print('parameters: {{role: web, {name}: hunter2}}')"
    notes: list[str] = []
    command = write(script, body)
    enc = EncCommand(
        argv=parse_command(command, where="enc"), timeout=60, env={}, note=notes.append
    )
    answer = enc.ask(NODE, processes=SystemProcesses(), documents=Documents(None))
    assert answer.parameters == {"role": "web"}
    (note,) = notes
    assert note.startswith(f"warning: enc {command}: parameters: ")
    assert repr(name) in note
    assert "left out" in note
    assert "hunter2" not in note


@pytest.mark.puppet
def test_what_ruby_writes_is_read_with_its_aliases_symbols_and_environment(script: Path) -> None:
    program = """
    nic = {"mac" => "52:54:00:12:34:56", "zip" => "08540", "id" => "7e12345"}
    puts({:classes => {"a" => {"nics" => [nic, nic]}}, :parameters => {"nic" => nic},
          "environment" => "KT_Org_Library_3"}.to_yaml)
    """
    printed = subprocess.run(
        ["/usr/bin/ruby", "-ryaml", "-e", program], capture_output=True, text=True, check=True
    ).stdout
    assert "*1" in printed
    assert "mac: 52:54" in printed
    answer = ask(write(script, f"print({printed!r})"))
    nic = {"mac": "52:54:00:12:34:56", "zip": "08540", "id": "7e12345"}
    assert answer.classes == {"a": {"nics": [nic, nic]}}
    assert answer.parameters == {"nic": nic}
    assert answer.environment == "KT_Org_Library_3"


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("print('environment:\\nclasses: [a]')", id="no environment"),
        pytest.param(
            "os.write(2, b'x' * 3_000_000); print('classes: [a]'); os.write(2, b'x' * 3_000_000)",
            id="error output",
        ),
        pytest.param("os.fork() or time.sleep(600)\nprint('classes: [a]')", id="a process is left"),
    ],
)
def test_an_answer_is_accepted_whatever_else_an_enc_does(script: Path, body: str) -> None:
    answer = ask(write(script, body))
    assert (list(answer.classes), answer.environment) == (["a"], None)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("relative/enc", "must start with an absolute path"),
        ("/bin/enc 'unclosed", "is not a command"),
        (" ", "must start with an absolute path"),
        ("/bin/enc\0", "has a NUL"),
    ],
)
def test_an_error_of_an_invalid_command_names_its_setting(text: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as caught:
        parse_command(text, where="localpuppet.yaml: enc")
    assert str(caught.value).startswith("localpuppet.yaml: enc: ")

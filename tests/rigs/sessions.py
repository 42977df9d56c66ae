"""Sessions in the pages of docs/: commands and their output, so that a test can run them."""

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tests.rigs.node import PATIENCE, REPOSITORY, Node

# The root of nodes in pages.
ROOT = "/etc/puppet"


def section(page: str, heading: str) -> str:
    """Return a section of a page, without its heading; `heading` is empty for the whole page."""
    text = (REPOSITORY / "docs" / page).read_text("utf-8")
    return text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0] if heading else text


def session(
    page: str, prompts: Sequence[str], heading: str = ""
) -> Iterator[tuple[str, str, list[str]]]:
    """Yield the prompt, the command and the output for each command in a page's console blocks."""
    text = section(page, heading)
    blocks = "".join(re.findall(r"```console\n(.*?)```", text, flags=re.DOTALL))
    yield from split_commands(blocks, prompts)


def split_commands(text: str, prompts: Sequence[str]) -> Iterator[tuple[str, str, list[str]]]:
    """Yield prompt, command and printed lines of each command of a console block."""
    for part in re.split(f"^(?={'|'.join(map(re.escape, prompts))})", text, flags=re.MULTILINE):
        if part:
            head, _, printed = part.partition("\n")
            prompt = next(prompt for prompt in prompts if head.startswith(prompt))
            yield prompt, head.removeprefix(prompt), printed.splitlines()


def typed(node: Node, command: str, *, root: Path, directory: Path, **more: str) -> str:
    """Return the output of a command that a user types on a node, with the root that pages have."""
    line = command.replace(ROOT, str(root))
    done = subprocess.run(
        ["sh", "-c", f'localpuppet() {{ "{sys.executable}" -m localpuppet "$@"; }}\n{line}'],
        cwd=directory,
        env={**node.environment(PYTHONPATH=str(REPOSITORY), **more), "LOCALPUPPET_ROOT": str(root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=PATIENCE,
    )
    return done.stdout.replace(str(root), ROOT)


def plain(lines: Iterable[str]) -> list[str]:
    """Return what does not differ from day to day, nor from machine to machine."""
    texts = []
    for line in lines:
        if "Facter" in line:
            continue
        # On a terminal, as on the page, a run begins with a short line.
        text = re.sub(r"^# .*puppet apply .*", "# puppet apply", line)
        text = re.sub(r"\b[0-9a-f]{12,64}\b", "ID", text)
        text = re.sub(r"\d{8}T\d{6}(\.\d{6})?Z-[0-9a-f]{4}", "RUN", text)
        text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", "TIME", text)
        text = re.sub(r"\b\d\d:\d\d:\d\d\b", "TIME", text)
        text = re.sub(r"\b(\d+[hm] )*\d+(\.\d+)?( s|s|ms|m|h| seconds)\b", "SPAN", text)
        text = re.sub(r"\b(by choria=\S+ on) \S+", r"\1 MACHINE", text)
        text = re.sub(r"revision \d+", "revision N", text)
        text = re.sub(r"Puppet \d+\.\d+\.\d+", "Puppet", text)
        text = re.sub(r"\b(catalog for|on node) \S+", r"\1 NODE", text)
        # For a noop, Puppet 8 prints what it would do, Puppet 7 what differs.
        text = re.sub(r"/ensure: .* \(noop\)$", "/ensure: CHANGE (noop)", text)
        text = re.sub(
            r"current_value 'absent', should be ('.*' \(noop\))", r"defined 'message' as \1", text
        )
        texts.append(re.sub(r"  +", "  ", text).rstrip())
    return [line for line in texts if line]

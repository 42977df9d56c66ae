"""Types a session into tmux, and writes what the terminal showed as an animated SVG.

The session is that of README: the preview of a pull request, and a rollout that its canary rolls
back, on the nodes of `docs/examples/three-tier`. Times are shortened, nothing else is changed.
"""

import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
COLUMNS, LINES = 86, 27
# Seconds: between two looks at the terminal, until a command must have ended, of the longest pause
# before they are shortened, until a reader has seen a result, of a picture, and of all pictures.
LOOK, PATIENCE = 0.08, 300.0
PAUSE, READING, SHORTEST, LENGTH = 0.7, 2.6, 0.08, 20.0
CHARACTER, LINE, SIZE, MARGIN = 7.8, 17, 13, 14
PROMPT = "$ "
Frame = tuple[float, tuple[str, ...]]
# Colours of a terminal: text, background, and the eight of SGR 30 to 37.
TEXT, BACKGROUND = "#d6deeb", "#0f1720"
COLOURS = (
    *("#5c6773", "#ff6b6b", "#7fd88f", "#e6b450"),
    *("#6cb6ff", "#d2a6ff", "#5ccfe6", "#d6deeb"),
)
# What is typed; an empty line clears the screen. The last value is what must be seen.
SESSION = (
    ("# a pull request: what does it change, on which nodes?", ""),
    ("localpuppet preview main...pool --captures ../captures", "compiled"),
    ("", ""),
    ("# it looks harmless: merge it, tag it, and roll it out with a canary", ""),
    ("git merge -q pool && git tag -a -m 'a pool of connections' r4", ""),
    ("localpuppet rollout run --release shop/tags/r4 --canary 1 --on-failure rollback", "rolled"),
    ("", ""),
    ("# the nodes that had it are back, the others never saw it", ""),
    ("localpuppet nodes", "app02"),
)


def main() -> None:
    """Record the session into the file that is named."""
    target = Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory(prefix="demo-") as home, example(Path(home, "shop")) as shop:
        prepare(shop)
        frames = record(shop)
    target.write_text(svg(shortened(frames)), encoding="utf-8")
    seconds = sum(length for _, length in shortened(frames))
    print(f"{target}: {len(frames)} pictures, {seconds:.1f} s")


@contextmanager
def example(home: Path) -> Iterator[Path]:
    """Run the example until its nodes wait for the next command."""
    script = ROOT / "docs/examples/three-tier/run"
    with subprocess.Popen(
        [script, "--keep", "--in", home], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        try:
            for line in running.stdout or ():
                print(line, end="", file=sys.stderr)
                if "Try it yourself" in line:
                    break
            yield home
        finally:
            running.communicate("\n")


def prepare(shop: Path) -> None:
    """Capture the nodes, and commit the change on a branch."""
    for root in sorted((shop / "nodes").iterdir()):
        run("localpuppet", "--root", root, "capture", shop / "captures")
    git = ["git", "-C", str(shop / "control")]
    run(*git, "switch", "-q", "-c", "pool")
    manifest = shop / "control/shop/manifests/app.pp"
    manifest.write_text(manifest.read_text().replace('"release = ', '"pool = 20\\nrelase = '))
    run(*git, "commit", "-q", "-a", "-m", "app: use a pool of connections")
    run(*git, "switch", "-q", "main")


def run(*words: str | Path) -> str:
    """Run a command, and return what it printed."""
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def record(shop: Path) -> list[Frame]:
    """Return the changes of the terminal: seconds, and its lines."""
    socket = f"record-{time.monotonic_ns()}"
    tmux = ["tmux", "-L", socket, "-f", "/dev/null"]
    size = ["-x", str(COLUMNS), "-y", str(LINES)]
    shell = f"env LOCALPUPPET_ROOT={shop}/alice PS1='{PROMPT}' PROMPT_COMMAND= bash --norc"
    run(*tmux, "new-session", "-d", *size, "-c", shop / "control", shell)
    run(*tmux, "set", "-g", "status", "off")
    frames: list[Frame] = []

    def look() -> str:
        shown = carried(run(*tmux, "capture-pane", "-e", "-p").splitlines())
        if not frames or frames[-1][1] != shown:
            frames.append((time.monotonic(), shown))
        time.sleep(LOOK)
        return re.sub(r"\x1b\[[\d;]*m", "", "\n".join(shown)).rstrip()

    def wait(seen: str) -> None:
        end = time.monotonic() + PATIENCE
        while not (look().endswith(PROMPT.rstrip()) and seen in look()):
            if time.monotonic() > end:
                sys.exit(f"scripts/record: {seen!r} did not come:\n{look()}")

    try:
        wait("")
        for words, seen in SESSION:
            if not words:
                pause(frames)
                run(*tmux, "send-keys", "C-l")
                wait("")
                continue
            for place in range(0, len(words), 3):
                run(*tmux, "send-keys", "-l", "--", words[place : place + 3])
                look()
            run(*tmux, "send-keys", "Enter")
            wait(seen)
        pause(frames)
    finally:
        subprocess.run([*tmux, "kill-server"], check=False)
    return frames


def carried(lines: Sequence[str]) -> tuple[str, ...]:
    """Return lines that begin with the style in which the line before ended."""
    found, active = [], ""
    for line in lines:
        found.append(active + line)
        for code in re.findall(r"\x1b\[[\d;]*m", line):
            active = "" if code in ("\x1b[m", "\x1b[0m") else active + code
    return tuple(found)


def pause(frames: list[Frame]) -> None:
    """Keep the last picture for a reader."""
    frames.append((time.monotonic() + READING, (*frames[-1][1], "")))


def shortened(frames: list[Frame]) -> list[tuple[Sequence[str], float]]:
    """Return pictures and the seconds that each is shown, `LENGTH` in total."""
    lengths = []
    for (begin, lines), (end, after) in pairwise(frames):
        lengths.append(READING if after[:-1] == lines else min(end - begin, PAUSE))
    reading = READING * lengths.count(READING)
    share = min(1, (LENGTH - reading) / (sum(lengths) - reading))
    found: list[tuple[Sequence[str], float]] = []
    left = 0.0
    for (_, lines), length in zip(frames, lengths, strict=False):
        left += length if length == READING else length * share
        if left >= SHORTEST:
            found.append((lines, left))
            left = 0.0
    return found


def svg(frames: Sequence[tuple[Sequence[str], float]]) -> str:
    """Return pictures that replace each other: equal lines are written once."""
    total = sum(length for _, length in frames)
    known: dict[str, str] = {}
    pictures, styles, at = [], [], 0.0
    for number, (lines, length) in enumerate(frames):
        uses = []
        for place, line in enumerate(lines[:LINES]):
            if not line.strip():
                continue
            name = known.setdefault(line, f"l{len(known)}")
            uses.append(f'<use href="#{name}" y="{place * LINE}"/>')
        begin, end = 100 * at / total, 100 * (at + length) / total
        last = number == len(frames) - 1
        styles.append(
            f"@keyframes f{number}{{0%{{opacity:{int(begin == 0)}}}"
            f"{begin:.3f}%{{opacity:1}}{end:.3f}%{{opacity:{int(last)}}}100%{{opacity:{int(last)}}}}}"
            f"#f{number}{{animation:f{number} {total:.2f}s step-end infinite}}"
        )
        pictures.append(f'<g class="f" id="f{number}">{"".join(uses)}</g>')
        at += length
    width, height = round(COLUMNS * CHARACTER + 2 * MARGIN), LINES * LINE + 2 * MARGIN
    texts = "".join(f'<text id="{name}">{spans(line)}</text>' for line, name in known.items())
    still = f"#f{len(frames) - 1}{{opacity:1}}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"'
        f' width="{width}" height="{height}" role="img">\n'
        "<title>A preview of a pull request, and a rollout that its canary rolls back</title>\n"
        f"<style>text{{font:{SIZE}px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;"
        f"fill:{TEXT};white-space:pre}}.f{{opacity:0}}{''.join(styles)}"
        f"@media (prefers-reduced-motion){{.f{{animation:none!important}}{still}}}</style>\n"
        f'<rect width="{width}" height="{height}" rx="8" fill="{BACKGROUND}"/>\n'
        f"<defs>{texts}</defs>\n"
        f'<g transform="translate({MARGIN} {MARGIN + SIZE})">{"".join(pictures)}</g>\n</svg>\n'
    )


def spans(line: str) -> str:
    """Return a line of a terminal as text of SVG: colour, bold and dim by its escapes."""
    found: list[str] = []
    style: dict[str, str] = {}
    column = 0
    for codes, text in re.findall(r"(?:\x1b\[([\d;]*)m)?([^\x1b]*)", line.rstrip()):
        for code in (codes or "").split(";") if codes is not None else ():
            style = styled(style, int(code or 0) if codes else -1)
        if text:
            marks = "".join(f' {name}="{value}"' for name, value in style.items())
            x = f' x="{column * CHARACTER:.1f}" textLength="{len(text) * CHARACTER:.1f}"'
            found.append(f"<tspan{x}{marks}>{escape(text)}</tspan>")
            column += len(text)
    return "".join(found)


def styled(style: dict[str, str], code: int) -> dict[str, str]:
    """Return a style after one code of SGR."""
    if code == 0:
        return {}
    if code == 1:
        return {**style, "font-weight": "700"}
    if code == 2:
        return {**style, "fill-opacity": "0.6"}
    if 30 <= code <= 37:
        return {**style, "fill": COLOURS[code - 30]}
    if 90 <= code <= 97:
        return {**style, "fill": COLOURS[code - 90]}
    if code == 39:
        return {name: value for name, value in style.items() if name != "fill"}
    return style


if __name__ == "__main__":
    main()

"""Previews before a rollout: one process at a time, within limits, and kept for equal captures."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from localpuppet.base.errors import LocalpuppetError
from localpuppet.base.formats.names import NodeName, ReleasePath
from localpuppet.node.releases.release_records import StagedRecords
from localpuppet.web.dashboard.rollout_previews import (
    BOUNDS,
    MOST_WAITING,
    RolloutPreview,
    RolloutPreviews,
)
from tests.web.make import staged

R1, R2 = ReleasePath("web/tags/r1"), ReleasePath("web/tags/r2")
WEB, DB = NodeName("web1"), NodeName("db1")
PART = '<div class="preview diff">'


@pytest.fixture
def previews(tmp_path: Path) -> RolloutPreviews:
    records = StagedRecords(tmp_path / "var")
    for release, digit in ((R1, "a"), (R2, "b")):
        records.write(staged(release, digit * 64))
    (tmp_path / "captures").mkdir()
    (tmp_path / "captures" / "web1.json").write_text("{}")
    return RolloutPreviews(
        captures=tmp_path / "captures",
        records=records,
        root=tmp_path,
        env={"PATH": os.environ["PATH"]},
        now=lambda: 7.0,
    )


def does(previews: RolloutPreviews, script: str) -> None:
    previews.words = ("/bin/sh", "-c", script, "sh")


async def made(previews: RolloutPreviews, *nodes: NodeName) -> RolloutPreview:
    one = await previews.begin(R1, R2, nodes or (WEB,))
    await one.ended.wait()
    return one


def test_a_preview_is_one_process_for_these_nodes_until_a_capture_changes(
    previews: RolloutPreviews, tmp_path: Path
) -> None:
    does(previews, f"echo \"$*\" >>{tmp_path}/calls; echo '{PART}</div>'")

    async def twice() -> None:
        one = await made(previews, DB, WEB)
        assert (one.part, one.problem, one.missing) == (f"{PART}</div>\n", "", [DB])
        assert await previews.begin(R1, R2, [WEB]) is one
        assert previews.named(one.key) is one
        (tmp_path / "captures" / "web1.json").write_text("{ }")
        assert await made(previews) is not one
        assert await made(previews) is not await previews.begin(R2, R1, [WEB])

    asyncio.run(twice())
    call = (tmp_path / "calls").read_text().splitlines()[0]
    assert "preview --staged web/tags/r1..web/tags/r2 " in call
    assert "--node=web1 --fragment=-" in call
    assert "db1" not in call


@pytest.mark.parametrize(
    ("script", "problem"),
    [
        ("echo 'localpuppet: error: no user namespaces' >&2; exit 1", "no user namespaces"),
        ("echo '<script>'", "the process did not start"),
        (f"echo '{PART}'; yes", "too long for a page"),
        ("while :; do :; done", "did not end within"),
    ],
)
def test_a_preview_that_fails_says_why_and_is_made_again(
    previews: RolloutPreviews, script: str, problem: str
) -> None:
    previews.bounds = replace(BOUNDS, seconds=1, output=1000)
    does(previews, script)

    async def fails() -> None:
        one = await made(previews)
        assert problem in one.problem
        assert one.part == ""
        does(previews, f"echo '{PART}'")
        assert (await made(previews)).part

    asyncio.run(fails())


def test_only_few_previews_wait(previews: RolloutPreviews, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    does(previews, f"exec cat {fifo}")

    async def many() -> None:
        for number in range(MOST_WAITING):
            (tmp_path / "captures" / "web1.json").write_text(" " * number)
            await previews.begin(R1, R2, [WEB])
        (tmp_path / "captures" / "web1.json").write_text("last")
        with pytest.raises(LocalpuppetError, match="too many previews wait"):
            await previews.begin(R1, R2, [WEB])

    asyncio.run(many())
    fifo.write_text("")  # returns once the process has opened it


@pytest.mark.parametrize("change", [{"captures": None}, {"captures": Path("/nonexistent")}])
def test_no_captures_is_a_reason(previews: RolloutPreviews, change: dict[str, Path | None]) -> None:
    previews.captures = change["captures"]
    with pytest.raises(LocalpuppetError, match=r"captures|nonexistent"):
        asyncio.run(previews.begin(R1, R2, [WEB]))
    previews.captures = previews.root / "captures"
    with pytest.raises(LocalpuppetError, match="capture --node db1"):
        asyncio.run(previews.begin(R1, R2, [DB]))

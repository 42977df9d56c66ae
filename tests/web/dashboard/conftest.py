"""A dashboard of five nodes, and a visitor. Each process compiles the templates once."""

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from types import CodeType

import pytest
from jinja2 import BytecodeCache, Environment
from jinja2.bccache import Bucket
from starlette.testclient import TestClient

from localpuppet.base.formats.times import show_time
from localpuppet.fleet.inventory.entry import CatalogQuery
from localpuppet.web.dashboard import view_context
from tests.fleet.inventory.entries import entry
from tests.web.make import Site, status


class CompiledTemplates(BytecodeCache):
    """What this process has compiled; a changed template has another checksum."""

    def __init__(self) -> None:
        self._code: dict[tuple[str, str], CodeType | None] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._code.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._code[bucket.key, bucket.checksum] = bucket.code


@pytest.fixture(scope="session", autouse=True)
def compiled_once() -> Iterator[None]:
    """Have all dashboards share compiled templates, which cost more than all else in a page."""
    with pytest.MonkeyPatch.context() as patch:
        shared = partial(Environment, bytecode_cache=CompiledTemplates())
        patch.setattr(view_context, "Environment", shared)
        yield


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(tmp_path)
    now = site.now()
    until = show_time(datetime.fromtimestamp(now + 3600, UTC))
    hold = {"owner": "alice", "reason": "database migration", "since": "", "until": until}
    site.tell(
        status("web01", now - 60, last_run={"outcome": "changed"}),
        status("web02", now - 90, last_run={"outcome": "failed", "category": "no_report"}),
        status("db01", now - 9000),
        status("lb01", now - 30, state="on hold", holds=[hold]),
        {"node": "eve", "state": "not trusted", "reason": "signed by mallory"},
    )
    site.list_(
        entry("web01", at=now - 60, roles=("web",)),
        entry(
            "lb01",
            at=now - 30,
            roles=("lb",),
            queries=(CatalogQuery(text='servers_with_role("web")', digest="x"),),
        ),
    )
    return site


@pytest.fixture
def visitor(site: Site) -> Iterator[TestClient]:
    with site.visitor() as client:
        yield client

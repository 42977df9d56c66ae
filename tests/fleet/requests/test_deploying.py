"""Deployments are requested until they have ended; serials are newer than those of all nodes."""

from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from localpuppet.base.formats.names import NodeName, ReleasePath
from localpuppet.base.formats.values import Json
from localpuppet.fleet.requests import request as messages
from localpuppet.fleet.requests.arguments import Deploy, DeployAction
from localpuppet.fleet.requests.request import Request
from localpuppet.fleet.requests.request_client import TOO_OLD, NodeAnswer, deploy_to, until_over
from tests.doubles.identities import person, verifier
from tests.doubles.simulated_loop import run_simulated
from tests.fleet.requests.test_client import A, B, Site

C = NodeName("c.example.com")
SILENT = NodeName("d.example.com")
ARGS = Deploy(release=ReleasePath("foo/tags/r2"), action=DeployAction.APPLY, serial=1)
# The statuses of nodes: C has a version without assignments.
TOLD: dict[str, dict[str, Json]] = {
    A: {"assignment": {"serial": 4}},
    B: {"assignment": {"serial": -7}},
    C: {"state": "idle"},
}


class Nodes(Site):
    """Nodes on a bus: B refuses, and A is done at the third request, or never."""

    def __init__(self, directory: Path, *, never: bool = False) -> None:
        super().__init__(directory)
        self.nodes[C] = person(C)
        (directory / "all").mkdir()
        self.verifier = verifier(directory / "all", self.alice, *self.nodes.values())
        self.never = never
        self.serials: list[int] = []

    async def serve(self, _: Site, request: Request) -> None:
        args = request.args
        outcome: dict[str, Json] | str = TOLD[request.node]
        if isinstance(args, Deploy):
            self.serials.append(args.serial)
            over = len(self.serials) > 3 and not self.never
            outcome = {"state": "done" if over else "working"}
            if request.node == B:
                outcome = "denied by policy"
        node = self.nodes[request.node]
        await self.reply(request, messages.answer(node.signer, request, outcome, clock=self.clock))

    def deploy(self, names: Sequence[NodeName], patience: float) -> dict[str, NodeAnswer]:
        async def work() -> dict[str, NodeAnswer]:
            async with AsyncExitStack() as stack:
                for node in self.nodes:
                    await stack.enter_async_context(self.answering(node, self.serve))
                if len(names) == 1:
                    args, client = ARGS, self.client()
                    return {
                        names[0]: await until_over(
                            client, names[0], "deploy", args, patience=patience
                        )
                    }
                return await deploy_to(self.client(), names, ARGS, patience=patience)

        return run_simulated(work())


def test_each_node_is_asked_until_it_is_done_or_refuses(tmp_path: Path) -> None:
    nodes = Nodes(tmp_path)
    found = nodes.deploy([A, B, C, SILENT], 60.0)
    assert [answer.ok for answer in found.values()] == [True, False, False, False]
    assert [answer.unresponsive for answer in found.values()] == [False, False, False, True]
    assert found[B].to_dict()["error"] == "denied by policy"
    assert found[C].to_dict()["error"] == TOO_OLD
    assert sorted(nodes.serials) == [1, 5, 5, 5], "newer than its own, and C was not asked"


@pytest.mark.parametrize("patience", [1.0, 600.0])
def test_a_node_that_does_not_finish_is_unresponsive(tmp_path: Path, patience: float) -> None:
    found = Nodes(tmp_path, never=True).deploy([A], patience)[A]
    assert found.unresponsive
    assert f"still working after {patience:g} s" in found.problem

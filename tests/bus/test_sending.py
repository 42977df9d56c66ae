"""What a call of many receivers leaves on the bus."""

import asyncio
import json
import uuid
from pathlib import Path

from localpuppet.bus import layout
from localpuppet.formats.names import NodeName
from localpuppet.triggers import sending
from localpuppet.trust.signing import claimed_payload
from tests.bus.engines import EtcdEngine, SqliteEngine
from tests.fakes import FakeClock
from tests.identities import person

RECEIVERS = tuple(NodeName.parse(f"n{number}.example.com") for number in range(45))
SENDER = person("web01.example.com")
CALL = sending.Call(hosts=RECEIVERS, tags=("x",), ttl=60, keyprefix="/t", keyttl=60)


async def test_messages_stay_small_however_many_receivers_there_are(tmp_path: Path) -> None:
    identifier = str(uuid.uuid4())
    async with SqliteEngine(tmp_path).open() as store:
        sent = await sending.send(
            CALL,
            kv=store,
            signer=SENDER.signer,
            paths=[()],
            clock=FakeClock(),
            uuid=identifier,
        )
        messages = []
        for receiver in RECEIVERS:
            (entry,) = (await store.list(layout.triggers_for(receiver, "/t"))).entries
            message = json.loads(claimed_payload(entry.value))
            assert receiver in message["hosts"]
            assert len(message["hosts"]) <= sending.TOGETHER
            messages.append(message)
    assert sent.sent == RECEIVERS
    assert {message["uuid"] for message in messages} == {identifier}
    named = {tuple(message["hosts"]) for message in messages}
    assert sorted(name for part in named for name in part) == sorted(RECEIVERS)


async def test_writes_of_one_moment_share_a_lease_of_etcd(tmp_path: Path) -> None:
    engine = EtcdEngine(tmp_path)
    engine.server.start()
    try:
        async with engine.open() as store:
            await asyncio.gather(
                *(store.put(f"/t/{number}", b"value", ttl=60.0) for number in range(20)),
                *(store.put(f"/u/{number}", b"value", ttl=90.0) for number in range(20)),
            )
        _, *leases = engine.server.ctl("lease", "list").splitlines()
        kept = [engine.server.ctl("lease", "timetolive", "--keys", lease) for lease in leases]
        assert [text.count("/t/") for text in sorted(kept, key=_starts_with_u)] == [20, 0]
        assert [text.count("/u/") for text in sorted(kept, key=_starts_with_u)] == [0, 20]
    finally:
        engine.server.stop()


def _starts_with_u(text: str) -> bool:
    return "/u/" in text

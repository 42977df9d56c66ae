"""Clients below localpuppet's stores: if they are refused, the server refuses and not localpuppet.

One class for each engine with the same verbs. Each verb returns `None` if the server refused for
lack of a permission, and its answer otherwise; any other failure is an error.
"""

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg

from localpuppet.base.machine.anchors import tls_context
from localpuppet.fleet.bus.jetstream_messages import inbox_of, packed, subject_of, subjects_below
from tests.rigs.bus.wire import EtcdWire, NatsWire
from tests.rigs.waiting import PATIENCE

STREAM = "localpuppet"


class RawNats:
    """nats-py, with the identity of a member."""

    def __init__(self, wire: NatsWire, client: Client, name: str) -> None:
        self.client = client
        self.api = wire.api(name)
        self.refusals: asyncio.Queue[str] = asyncio.Queue()

    async def on_error(self, error: Exception) -> None:
        if "permissions violation" in str(error).lower():
            self.refusals.put_nowait(str(error))

    async def ask(
        self,
        subject: str,
        body: bytes | dict[str, Any] = b"",
        headers: dict[str, Any] | None = None,
    ) -> Msg | None:
        """Send a request; `None` when the server refused it."""
        data = json.dumps(body).encode() if isinstance(body, dict) else body
        asking = asyncio.create_task(
            self.client.request(subject, data, timeout=PATIENCE, headers=headers)
        )
        refusing = asyncio.create_task(self.refusals.get())
        await asyncio.wait({asking, refusing}, return_when=asyncio.FIRST_COMPLETED)
        if refusing.done():
            asking.cancel()
            assert subject.lower() in refusing.result().lower()
            return None
        refusing.cancel()
        return asking.result()

    async def call(self, method: str, body: dict[str, Any] | None = None) -> dict[str, Any] | None:
        """Call JetStream; `None` when it was refused, else its answer, which may be an error."""
        answer = await self.ask(f"{self.api}.{method}", body or {})
        return None if answer is None else dict(json.loads(answer.data))

    async def write(self, key: str, value: bytes) -> object | None:
        return await self.ask(subject_of("lp", key), packed(value, ttl=None))

    async def read(self, key: str) -> object | None:
        return await self.ask(f"{self.api}.DIRECT.GET.{STREAM}.{subject_of('lp', key)}")

    async def list(self, prefix: str) -> object | None:
        name, subject = f"x{os.urandom(4).hex()}", subjects_below("lp", prefix)
        config = {"name": name, "filter_subject": subject, "ack_policy": "none"}
        return await self.call(
            f"CONSUMER.CREATE.{STREAM}.{name}.{subject}", {"stream_name": STREAM, "config": config}
        )

    async def subscribe(self, subject: str) -> object | None:
        subscription = await self.client.subscribe(subject)
        for _ in range(2):  # the first may take the answer to a ping of the library's for its own
            await self.client.flush(timeout=int(PATIENCE))
        if self.refusals.empty():
            await subscription.unsubscribe()
            return subscription
        assert subject.lower() in self.refusals.get_nowait().lower()
        return None

    async def watch(self, prefix: str) -> object | None:
        """Listen to what is repeated, or to what is written."""
        repeated = await self.subscribe(subjects_below("lp-live", prefix))
        return repeated or await self.subscribe(subjects_below("lp", prefix))


@asynccontextmanager
async def raw_nats(wire: NatsWire, name: str, **options: Any) -> AsyncGenerator[RawNats, None]:
    """Connect with nats-py."""
    own = wire.identity(name)
    client = Client()
    made = RawNats(wire, client, name)
    await client.connect(
        wire.url,
        tls=tls_context(wire.authority.path, own.certificate, own.key),
        inbox_prefix=inbox_of(name),
        error_cb=made.on_error,
        allow_reconnect=False,
        **options,
    )
    try:
        yield made
    finally:
        await client.close()


class RawEtcd:
    """etcdctl, with the identity of a member."""

    def __init__(self, wire: EtcdWire, name: str) -> None:
        self._wire = wire
        self._name = name

    def ctl(self, *arguments: str) -> object | None:
        """Run a command of etcdctl; return `None` if the server replied "permission denied"."""
        done = self._wire.ctl(self._name, *arguments)
        if done.code == 0:
            return done.out
        assert "permission denied" in done.err, done.err
        return None

    async def write(self, key: str, value: bytes) -> object | None:
        return self.ctl("put", key, value.decode())

    async def read(self, key: str) -> object | None:
        return self.ctl("get", key)

    async def list(self, prefix: str) -> object | None:
        return self.ctl("get", "--prefix", prefix)

    async def watch(self, prefix: str) -> object | None:
        """Watch from the first revision on; a refusal comes at once, an event as well."""
        with subprocess.Popen(
            [*("timeout", "5", "etcdctl"), "watch", "--prefix", "--rev=1", prefix],
            env=self._wire.environment(self._name),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as watching:
            assert watching.stdout is not None
            assert watching.stderr is not None
            first = watching.stdout.readline()
            watching.terminate()
            error_text = watching.stderr.read()
        assert first or "permission denied" in error_text, error_text
        return first or None


Raw = RawNats | RawEtcd


@asynccontextmanager
async def raw(wire: NatsWire | EtcdWire, name: str) -> AsyncGenerator[Raw, None]:
    """Connect with the identity of a member, below localpuppet's stores."""
    if isinstance(wire, EtcdWire):
        yield RawEtcd(wire, name)
    else:
        async with raw_nats(wire, name) as client:
            yield client

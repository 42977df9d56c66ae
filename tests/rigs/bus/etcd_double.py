"""A server with etcd's protocol that answers as a test wants: lies, refusals, floods."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from grpclib.const import Cardinality, Handler
from grpclib.encoding.base import CodecBase
from grpclib.server import Server, Stream

from tests.rigs.servers import free_port

Serve = Callable[[Stream[bytes, bytes]], Awaitable[None]]


class _Bytes(CodecBase):
    """Messages are bytes already."""

    __content_subtype__ = "proto"

    def encode(self, message: object, message_type: object) -> bytes:
        assert isinstance(message, bytes)
        return message

    def decode(self, data: bytes, message_type: object) -> bytes:
        return data


class _Service:
    def __init__(self, methods: Mapping[str, Serve]) -> None:
        self._methods = methods

    def __mapping__(self) -> Mapping[str, Handler]:
        return {
            name: Handler(serve, Cardinality.STREAM_STREAM, bytes, bytes)
            for name, serve in self._methods.items()
        }


def answering(*answers: bytes) -> Serve:
    """Answer each question with these messages."""

    async def serve(stream: Stream[bytes, bytes]) -> None:
        await stream.recv_message()
        for answer in answers:
            await stream.send_message(answer)

    return serve


@asynccontextmanager
async def etcd_double(methods: Mapping[str, Serve]) -> AsyncGenerator[str, None]:
    """Serve some of etcd's methods; yield the URL."""
    server = Server([_Service(methods)], codec=_Bytes())
    port = free_port()
    await server.start("127.0.0.1", port)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.close()
        await server.wait_closed()

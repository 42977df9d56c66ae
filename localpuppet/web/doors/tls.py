"""TLS before HTTP: each connection shows a certificate of the CA, in time, and not too many come.

Owns: a connection until its handshake is over. Refuses to know: who may look, HTTP.

Invariants:

- No byte reaches HTTP of a connection that has not shown a certificate which the CA has issued, and
  the key of it.
- Who shows none is told so, always in the same words, whatever is asked: nothing of it is read.
"""

import asyncio
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from localpuppet.base.errors import LocalpuppetError
from localpuppet.base.machine.ports import LineKind, Log
from localpuppet.web.doors.crowd import Crowd

# Seconds in which a handshake is over, and in which the other side says goodbye.
PATIENCE = 10.0
GOODBYE = 2.0
_WORDS = b"""\
This page is for people with a certificate of this site, and your browser has shown none.

Import your certificate and its key into the browser. If it has asked for one already and you
sent none, end the browser and begin again: it asks once. Whoever runs the page has the list of
those who may look.
"""
NO_CERTIFICATE = (
    b"HTTP/1.1 403 Forbidden\r\ncontent-type: text/plain; charset=utf-8\r\n"
    b"x-content-type-options: nosniff\r\ncache-control: no-store\r\nconnection: close\r\n"
    b"content-length: %d\r\n\r\n%s" % (len(_WORDS), _WORDS)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """How connections are secured.

    Attributes:
        context: Returns the server's side of TLS, which asks each client for a certificate, with
            the files as they are now.
        crowd: Counts connections.
        log: Is told when the files are refused.
        patience: Seconds in which a handshake is over, and in which somebody without a certificate
            asks for something.
    """

    context: Callable[[], ssl.SSLContext]
    crowd: Crowd
    log: Log
    patience: float = PATIENCE


class Handshake(asyncio.Protocol):
    """A connection: first the handshake, then whatever speaks HTTP over it.

    Args:
        tls: How it is secured.
        make: Makes what speaks HTTP.
    """

    def __init__(self, tls: Tls, make: Callable[[], asyncio.Protocol]) -> None:
        self._tls = tls
        self._make = make
        self._inner: asyncio.Protocol | None = None
        self._stranger: asyncio.Transport | None = None
        self._late: asyncio.TimerHandle | None = None
        self._early = b""
        self._gone = False
        self._one: str | None = None
        self._task: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin the handshake, or let go whoever is one too many."""
        plain = cast("asyncio.Transport", transport)
        plain.pause_reading()
        peer = plain.get_extra_info("peername")  # none where it has gone already
        self._one = self._tls.crowd.enter(peer[0]) if peer else None
        if self._one is None:
            plain.abort()
            return
        # The loop forgets tasks that nobody holds.
        self._task = asyncio.get_running_loop().create_task(self._shake(plain))

    async def _shake(self, plain: asyncio.Transport) -> None:
        if self._gone:
            return
        try:
            secured = await asyncio.get_running_loop().start_tls(
                plain,
                self,
                self._tls.context(),
                server_side=True,
                ssl_handshake_timeout=self._tls.patience,
                ssl_shutdown_timeout=GOODBYE,
            )
        except ssl.SSLError as error:  # a certificate of another CA, no TLS at all
            self._refused(getattr(error, "verify_message", "") or error.reason or "not TLS")
            self._let_go(plain)
        except OSError:  # it has gone, or no time is left
            self._let_go(plain)
        except LocalpuppetError as error:
            line = f"nobody can come in: {error}"
            self._tls.log.warning(line, kind=LineKind.STRANGER)
            self._let_go(plain)
        else:
            self._speak(secured)

    def _refused(self, why: str) -> None:
        line = f"refused a connection from {self._one}: {why}"
        self._tls.log.info(line, kind=LineKind.STRANGER)

    def _let_go(self, plain: asyncio.Transport) -> None:
        plain.abort()
        self._leave()

    def _leave(self) -> None:
        if self._one is not None:
            self._tls.crowd.leave(self._one)
        self._one = None

    def _speak(self, secured: asyncio.Transport | None) -> None:
        """Hand the connection over, with what came together with the end of the handshake."""
        if secured is None or self._gone:
            self._leave()  # gone in the middle of the handshake: nobody says that it was lost
            return
        if not secured.get_extra_info("ssl_object").getpeercert(binary_form=True):
            self._turn_away(secured)
            return
        self._inner = self._make()
        self._inner.connection_made(secured)
        if self._early:
            self._inner.data_received(self._early)
        self._early = b""

    def _turn_away(self, secured: asyncio.Transport) -> None:
        """Tell somebody without a certificate so, as soon as anything is asked for."""
        self._refused("no certificate")
        self._stranger = secured
        if self._early:
            self._answer()
        else:
            self._late = asyncio.get_running_loop().call_later(self._tls.patience, secured.abort)

    def _answer(self) -> None:
        if self._stranger is not None and not self._stranger.is_closing():
            self._stranger.write(NO_CERTIFICATE)
            self._stranger.close()

    def data_received(self, data: bytes) -> None:
        """Hand bytes on."""
        if self._stranger is not None:
            self._answer()
        elif self._inner is None:
            self._early += data
        else:
            self._inner.data_received(data)

    def eof_received(self) -> bool | None:
        """Close the connection: TLS has no half of one."""
        return None

    def pause_writing(self) -> None:
        """Hand on that the other side reads too slowly."""
        if self._inner is not None:
            self._inner.pause_writing()

    def resume_writing(self) -> None:
        """Hand on that the other side has read."""
        if self._inner is not None:
            self._inner.resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Hand on that the connection has ended."""
        self._gone = True
        if self._late is not None:
            self._late.cancel()
        self._leave()
        if self._inner is not None:
            self._inner.connection_lost(exc)

"""TLS of clients: the server is verified, and a certificate shown where there is one."""

import ssl
from contextlib import ExitStack
from pathlib import Path

from localpuppet.errors import InvalidInputError
from localpuppet.machine.anchors import open_anchor


def tls_context(ca: Path | None, certificate: Path | None, key: Path | None) -> ssl.SSLContext:
    """Return TLS that verifies the server, and shows a client certificate if there is one.

    Raises:
        InvalidInputError: A file is refused (see `open_anchor`), or holds something else.
    """
    where = str(ca)
    try:
        with ExitStack() as opened:

            def checked(path: Path) -> str:
                file = opened.enter_context(open_anchor(path))
                return f"/proc/self/fd/{file.fileno()}"

            context = ssl.create_default_context(cafile=None if ca is None else checked(ca))
            if certificate is not None:
                where = str(certificate)
                own = None if key is None else checked(key)
                context.load_cert_chain(checked(certificate), own)
            return context
    except OSError as error:  # ssl.SSLError is one
        raise InvalidInputError(
            f"cannot be used for TLS: {error.strerror or error}", where=where
        ) from error

"""Trust anchors: files that say whom we trust, or prove who we are.

Owns: reading them with the refusals of every file that a user wrote (`machine.files`). Refuses to
know: what is in them.
"""

import pwd
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.machine.files import MAX_DOCUMENT, open_user_file

if TYPE_CHECKING:
    import ssl

# Returns a name under which a library finds a file that was looked at.
_Checked = Callable[[Path], str]


def open_anchor(path: Path, *, limit: int = MAX_DOCUMENT) -> BinaryIO:
    """Return a file that says whom we trust, or proves who we are, open for reading.

    Certificates, lists of signers, keys for TLS. Puppet gives its own certificates and keys to its
    service user again in each run, so that user may own them. A library that takes only a name gets
    `/proc/self/fd/N` of the open file: what was looked at is what is used.

    Args:
        path: The file; symlinks are followed.
        limit: The most bytes that it may have.

    Raises:
        InvalidInputError: As `read_user_file` does.
    """
    user = puppet_user()
    return open_user_file(path, limit=limit, owners=[] if user is None else [user.pw_uid])


def read_anchor(path: Path, *, limit: int = MAX_DOCUMENT) -> bytes:
    """Return the bytes of a file that says whom we trust; see `open_anchor`.

    Raises:
        InvalidInputError: As `read_user_file` does.
    """
    with open_anchor(path, limit=limit) as file:
        return file.read(limit)


def puppet_user() -> pwd.struct_passwd | None:
    """Return Puppet's service user, to whom it gives its certificates; `None` without one."""
    try:
        return pwd.getpwnam("puppet")
    except KeyError:
        return None


def tls_context(
    ca: Path | None, certificate: Path | None = None, key: Path | None = None
) -> "ssl.SSLContext":
    """Return TLS that verifies servers, and shows a client certificate if there is one.

    Args:
        ca: The file of the authorities to trust; `None` for the system's.
        certificate: The client's certificate.
        key: Its key; `None` where the certificate's file holds it.

    Raises:
        InvalidInputError: A file is refused (see `open_anchor`), or holds something else.
    """
    import ssl  # 15 ms, where nobody may need it

    def make(checked: _Checked) -> "ssl.SSLContext":
        context = ssl.create_default_context(cafile=None if ca is None else checked(ca))
        if certificate is not None:
            _load_own(context, checked, certificate, key)
        return context

    return _made(make)


def server_tls_context(ca: Path, certificate: Path, key: Path | None) -> "ssl.SSLContext":
    """Return TLS of a server that asks each client for a certificate of the authorities.

    Each connection shows its certificate anew: no session is resumed. One that shows none is let
    through, for the caller to look at; one that shows another is not.

    Args:
        ca: The file of the authorities.
        certificate: The server's certificate.
        key: Its key; `None` where the certificate's file holds it.

    Raises:
        InvalidInputError: A file is refused (see `open_anchor`), or holds something else.
    """
    import ssl

    def make(checked: _Checked) -> "ssl.SSLContext":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = ssl.CERT_OPTIONAL
        # A CA in the file is trusted by itself, as `trust.authority` does.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
        context.num_tickets = 0
        context.load_verify_locations(cafile=checked(ca))
        _load_own(context, checked, certificate, key)
        return context

    return _made(make)


def _load_own(
    context: "ssl.SSLContext", checked: "_Checked", certificate: Path, key: Path | None
) -> None:
    own = None if key is None else checked(key)
    context.load_cert_chain(checked(certificate), own)


def _made(make: "Callable[[_Checked], ssl.SSLContext]") -> "ssl.SSLContext":
    """Return what is made with files that were looked at; the last that was opened is to blame."""
    looked_at: list[Path] = []
    with ExitStack() as opened:

        def checked(path: Path) -> str:
            looked_at.append(path)
            file = opened.enter_context(open_anchor(path))
            return f"/proc/self/fd/{file.fileno()}"

        try:
            return make(checked)
        except OSError as error:  # ssl.SSLError is one
            raise InvalidInputError(
                f"cannot be used for TLS: {error.strerror or error}",
                where=str(looked_at[-1] if looked_at else "the system's authorities"),
            ) from error

"""Read trust anchors: certificates, lists of signers and keys for TLS.

They are read with the checks of every file that a user wrote (`machine.files`). If a file fails
them, or has other content, the functions raise `InvalidInputError`.
"""

import pwd
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from localpuppet.base.errors import InvalidInputError, LocalpuppetError
from localpuppet.base.machine.files import MAX_DOCUMENT, open_user_file

if TYPE_CHECKING:
    import ssl

# Returns a name under which a library opens a file that passed the checks.
_Checked = Callable[[Path], str]


def open_anchor(path: Path, *, limit: int = MAX_DOCUMENT) -> BinaryIO:
    """Return a trust anchor, open for reading.

    In each run, Puppet resets the owner of its certificates and keys to its service user, so that
    user may own the file. A library that takes only a name gets `/proc/self/fd/N` of the open file:
    it uses the same file that passed the checks.
    """
    user = puppet_user()
    return open_user_file(path, limit=limit, owners=[] if user is None else [user.pw_uid])


def read_anchor(path: Path) -> bytes:
    """Return the bytes of a trust anchor; see `open_anchor`."""
    with open_anchor(path, limit=MAX_DOCUMENT) as file:
        return file.read(MAX_DOCUMENT)


def anchor_problems(files: Mapping[str, Path | None]) -> list[str]:
    """Return why the files of settings cannot be read, each with the name of its setting."""
    problems = []
    for setting, path in files.items():
        try:
            if path is not None:
                open_anchor(path).close()
        except LocalpuppetError as error:
            problems.append(f"{setting}: {error}")
    return problems


def puppet_user() -> pwd.struct_passwd | None:
    """Return Puppet's service user, which owns its certificates; `None` if it does not exist."""
    try:
        return pwd.getpwnam("puppet")
    except KeyError:
        return None


def tls_context(
    ca: Path | None, certificate: Path | None = None, key: Path | None = None
) -> "ssl.SSLContext":
    """Return a TLS context that verifies servers and presents a client certificate, if given.

    Args:
        ca: The file of the trusted authorities; `None` for the system's.
        key: Its key; `None` if the certificate's file has it.
    """
    import ssl  # 15 ms; many callers use no TLS

    def make(checked: _Checked) -> "ssl.SSLContext":
        context = ssl.create_default_context(cafile=None if ca is None else checked(ca))
        if certificate is not None:
            _load_own(context, checked, certificate, key)
        return context

    return _made(make)


def server_tls_context(ca: Path | None, certificate: Path, key: Path | None) -> "ssl.SSLContext":
    """Return the TLS context of a server that requests client certificates of `ca`.

    Sessions are not resumed, so each connection presents its certificate again. A connection
    without a certificate is accepted: the caller must check. An untrusted certificate is rejected.

    Args:
        ca: `None` to request no client certificates.
        key: Its key; `None` if the certificate's file has it.
    """
    import ssl

    def make(checked: _Checked) -> "ssl.SSLContext":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION
        context.num_tickets = 0
        if ca is not None:
            context.verify_mode = ssl.CERT_OPTIONAL
            # An intermediate CA in the file is trusted by itself, as in `trust.authority`.
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
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
    """Return what `make` builds from checked files; an error names the last file opened."""
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

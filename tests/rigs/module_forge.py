"""A forge for tests: archives of modules, and a server that speaks version 3 of the Forge's API.

That it does so is proven by r10k, which installs from it (`test_against_r10k.py`).
"""

import gzip
import hashlib
import http.server
import io
import json
import ssl
import tarfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import urlsplit

from tests.rigs.tls import Authority


def archive(
    slug: str, version: str, files: Mapping[str, str], *, name: str | None = None, **metadata: Any
) -> bytes:
    """Return the archive of a module, as `pdk build` makes one."""
    dashed = slug.replace("/", "-")
    about = {
        "name": name or dashed,
        "version": version,
        "author": "acme",
        "license": "Apache-2.0",
        "summary": "a module",
        "source": "https://git.example.com/module",
        "dependencies": [],
        **metadata,
    }
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.USTAR_FORMAT) as tar,
    ):
        whole = {"metadata.json": json.dumps(about), **files}
        top = f"{dashed}-{version}"
        places = {str(parent) for path in whole for parent in PurePath(top, path).parents}
        for place in sorted(places - {"."}):  # g10k makes no directory that is not in the archive
            directory = tarfile.TarInfo(place)
            directory.type, directory.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(directory)
        for path, text in whole.items():
            member = tarfile.TarInfo(f"{top}/{path}")
            member.size, member.mode = len(text.encode()), 0o644
            tar.addfile(member, io.BytesIO(text.encode()))
    return packed.getvalue()


@dataclass
class ModuleForge:
    """Archives by name, and the requests."""

    files: dict[str, bytes] = field(default_factory=dict)  # `OWNER-NAME-VERSION.tar.gz` → bytes
    # path and headers of each request
    asked: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    # archives whose first answer breaks off in the middle
    cut: set[str] = field(default_factory=set)
    elsewhere: str = ""  # A URL that archives are redirected to; empty for none
    # archives → the digest that the API has instead of theirs
    lies: dict[str, str] = field(default_factory=dict)
    said: int = 0  # the size in megabytes of the body of a redirect
    silent: bool = False  # whether the API has no SHA-256
    token: str = ""  # what it requires as `Authorization: Bearer …`; empty for nothing
    slow: str = ""  # what it sends without end, one byte at a time: "headers", "body", or nothing
    over: threading.Event = field(default_factory=threading.Event)

    def publish(self, slug: str, version: str, text: str = "", **more: Any) -> None:
        """Publish a module with one class."""
        name = slug.partition("/")[2]
        body = f"class {name} {{ notify {{ '{name} {version}{text}': }} }}\n"
        files = {"manifests/init.pp": body}
        self.files[f"{slug.replace('/', '-')}-{version}.tar.gz"] = archive(
            slug, version, files, **more
        )

    def write(self, directory: Path) -> str:
        """Write all archives into a directory; return its URL."""
        directory.mkdir(parents=True, exist_ok=True)
        for name, data in self.files.items():
            (directory / name).write_bytes(data)
        return f"file://{directory}"

    def paths(self, part: str) -> list[str]:
        """Return the requested paths that contain `part`."""
        return [path for path, _ in self.asked if part in path]

    def document(self, path: str) -> dict[str, Any] | None:
        """Return the API's document at a path."""
        kind, _, slug = path.removeprefix("/v3/").partition("/")
        if kind == "releases":
            return self._release(f"{slug}.tar.gz")
        releases = [self._release(name) for name in self.files if name.startswith(f"{slug}-")]
        if kind != "modules" or not releases:
            return None
        newest = sorted(releases, key=lambda item: [int(n) for n in item["version"].split(".")])
        owner, _, name = slug.partition("-")
        return {
            "uri": f"/v3/modules/{slug}",
            "slug": slug,
            "name": name,
            "owner": {"uri": f"/v3/users/{owner}", "slug": owner, "username": owner},
            "current_release": newest[-1],
            "releases": newest[::-1],
        }

    def _release(self, name: str) -> dict[str, Any]:
        if name not in self.files:
            return {}
        slug, _, version = name.removesuffix(".tar.gz").rpartition("-")
        data = self.files[name]
        document = {
            "uri": f"/v3/releases/{slug}-{version}",
            "slug": f"{slug}-{version}",
            "version": version,
            "file_uri": f"/v3/files/{name}",
            "file_size": len(data),
            "file_md5": hashlib.md5(data, usedforsecurity=False).hexdigest(),
            "deleted_at": None,
        }
        if not self.silent:
            document["file_sha256"] = self.lies.get(name, hashlib.sha256(data).hexdigest())
        return document


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    forge: ModuleForge

    def do_GET(self) -> None:
        forge = self.forge
        path = urlsplit(self.path).path
        forge.asked.append((path, dict(self.headers)))
        name = path.rpartition("/")[2]
        if forge.token and self.headers.get("Authorization") != f"Bearer {forge.token}":
            self._answer(401, b"{}")
            return
        if forge.slow:
            self._trickle(forge.slow)
            return
        if path.startswith("/v3/files/") and name in forge.files:
            if forge.elsewhere:
                self._redirect(f"{forge.elsewhere}{path}", forge.said)
            else:
                self._file(name, forge.files[name])
            return
        document = forge.document(path)
        self._answer(200 if document else 404, json.dumps(document or {"message": "no"}).encode())

    def _redirect(self, place: str, megabytes: int) -> None:
        self.send_response(302)
        self.send_header("Location", place)
        self.send_header("Content-Length", str(megabytes * 1024 * 1024))
        self.end_headers()
        with suppress(OSError):  # the client has left
            for _ in range(megabytes):
                self.wfile.write(bytes(1024 * 1024))

    def _file(self, name: str, data: bytes) -> None:
        start = int(self.headers.get("Range", "bytes=0-").removeprefix("bytes=").rstrip("-"))
        if start >= len(data):
            self._answer(416, b"")
            return
        body = data[start:]
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if name in self.forge.cut:
            self.forge.cut.discard(name)
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
            return
        self.wfile.write(body)

    def _trickle(self, part: str) -> None:
        """Send a byte now and then, until the client or the test has enough."""
        self.close_connection = True
        self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
        if part == "body":
            self.wfile.write(b"x\r\nContent-Length: 100000\r\n\r\n")
        with suppress(OSError):
            while not self.forge.over.wait(0.02):
                self.wfile.write(b"x")

    def _answer(self, code: int, body: bytes, **headers: str) -> None:
        self.send_response(code)
        for name, value in {"Content-Type": "application/json", **headers}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@contextmanager
def serve(forge: ModuleForge, authority: Authority | None) -> Iterator[str]:
    """Serve a forge, over TLS with a certificate of the authority's; yield its URL."""
    handler = type("Handler", (_Handler,), {"forge": forge})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    if authority is not None:
        tls = authority.server()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tls.certificate, tls.key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        scheme = "http" if authority is None else "https"
        yield f"{scheme}://127.0.0.1:{server.server_address[1]}"
    finally:
        forge.over.set()
        server.shutdown()
        thread.join()
        server.server_close()

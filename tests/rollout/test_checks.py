"""Checks of nodes: their forms, their runner, and probes of real servers and commands."""

import asyncio
import ssl
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.times import show_duration
from localpuppet.base.formats.values import Json
from localpuppet.rollout import site
from localpuppet.rollout.checking import AT_ONCE, PAUSE, TRIES, CheckRunner, Probing
from tests.rigs.node import REPOSITORY
from tests.rigs.tls import Authority
from tests.rigs.waiting import PATIENCE, wait_until
from tests.rollout.make import SimulatedProbe, node


@pytest.mark.parametrize(
    ("text", "check"),
    [
        ("http://%{node}:8080/health?x=1", "http://%{node}:8080/health?x=1"),
        ("https://web", "https://web"),
        ("/bin/probe --host %{node}", ("/bin/probe", "--host", "%{node}")),
        ("/bin/sh -c 'exit 0; # $HOME'", ("/bin/sh", "-c", "exit 0; # $HOME")),
    ],
)
def test_a_check_is_parsed_from_a_text(text: str, check: site.Check) -> None:
    assert site.parse_text(text, where="--check") == check
    assert site.parse_check(site.to_json(check), "") == check  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("probe %{node}", "neither an http or https URL nor a command"),
        ("", "neither"),
        ("ftp://web/", "neither"),
        ("http://me:pw@web/", "without a user"),
        ("http://web:99999/", "is not an http or https URL"),
        ("http://web:x/", "is not an http or https URL"),
        ("http://:80/", "is not an http or https URL"),
        ("/bin/probe 'x", "has unbalanced quotes"),
        ("/bin/probe %{fqdn}", r"\[1\]: unknown placeholder"),
        ("/bin/probe " + "x" * site.MAX_CHECK, "characters; at most 4096"),
        ("http://web/" + "x" * site.MAX_CHECK, "characters; at most 4096"),
        ("/bin/probe" + " x" * 64, "has 65 elements; at most 64"),
    ],
)
def test_an_invalid_check_is_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message) as refused:
        site.parse_text(text, where="--check")
    assert str(refused.value).startswith("--check")


@pytest.mark.parametrize("value", [None, 1, {"a": 1}, [], ["probe"], [1], ["/p", "\0"]])
def test_an_invalid_check_in_a_document_is_refused(value: Json) -> None:
    with pytest.raises(InvalidInputError):
        site.parse_check(value, "checks[0]")


def test_the_node_name_replaces_each_placeholder() -> None:
    found = site.on_node(("/bin/probe", "%{node}:%{node}", "%{x"), node(1))
    assert found == ("/bin/probe", "n01.example.com:n01.example.com", "%{x")
    assert (
        site.on_node("http://%{node}/%{node}", node(1)) == "http://n01.example.com/n01.example.com"
    )


def test_messages_name_a_check_without_possible_secrets() -> None:
    assert site.shown("https://web/health?token=secret") == "https://web/health"
    assert site.shown(("/bin/probe", "--password", "secret")) == "/bin/probe"


@pytest.mark.simulated
async def test_the_checks_of_a_node_run_together_and_a_failed_check_is_named() -> None:
    bad = ("/bin/probe", "secret")
    probe = SimulatedProbe(bad={bad, "http://n01.example.com/2"})
    checks = ("http://%{node}/1", bad, "http://%{node}/2", "http://%{node}/1")
    problem = await CheckRunner(probe).problem(node(1), checks)
    assert problem == f"check /bin/probe: answered 503, {TRIES} times (and 1 more)"
    assert asyncio.get_running_loop().time() == TRIES * 0.5 + (TRIES - 1) * PAUSE
    tried = [check for check, _ in probe.tried]
    assert tried.count("http://n01.example.com/1") == 1, "once, though the list has it twice"
    assert tried.count(bad) == TRIES


@pytest.mark.simulated
async def test_the_number_of_concurrent_checks_is_limited_over_all_nodes() -> None:
    probe = SimulatedProbe()
    checking = CheckRunner(probe)
    checks = [f"http://%{{node}}/{number}" for number in range(AT_ONCE)]
    found = await asyncio.gather(*(checking.problem(node(one), checks) for one in range(3)))
    assert found == ["", "", ""]
    assert probe.most == AT_ONCE


# Does the check that its arguments are.
OPERATOR = """
import asyncio, sys
from localpuppet.rollout.checking import Probing
asyncio.run(Probing(ca=None).problem(tuple(sys.argv[1:]), seconds=1000.0))
"""

SHORT = 0.2


@asynccontextmanager
async def server(answer: bytes, *, tls: ssl.SSLContext | None = None) -> AsyncGenerator[str, None]:
    """Serve each client the same bytes, and keep the connection open; yield HOST:PORT."""
    over = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await over.wait()
        writer.close()

    found = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    try:
        yield f"127.0.0.1:{found.sockets[0].getsockname()[1]}"
    finally:
        over.set()
        found.close()


def tried(
    answer: bytes,
    path: str = "/",
    *,
    seconds: float = PATIENCE,
    ca: Path | None = None,
    tls: ssl.SSLContext | None = None,
) -> str:
    """Return the result of a check of a server with this answer."""

    async def work() -> str:
        async with server(answer, tls=tls) as host:
            url = f"{'https' if tls else 'http'}://{host}{path}"
            return await Probing(ca=ca).problem(url, seconds=seconds)

    return asyncio.run(work())


def run(check: site.Check, *, seconds: float = PATIENCE) -> str:
    return asyncio.run(Probing(ca=None).problem(check, seconds=seconds))


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"HTTP/1.1 200 OK\r\n\r\n", ""),
        (b"HTTP/1.1 204 No Content\r\nConnection: keep-alive\r\n\r\n", ""),
        (b"HTTP/1.1 503 Down\r\nContent-Length: 100\r\n\r\n", "answered 503"),
        (
            b"HTTP/1.1 302 Found\r\nLocation: http://127.0.0.1:1/\r\n\r\n",
            "answered 302, and redirects are not followed",
        ),
        (b"SSH-2.0-secret\r\n\r\n", "did not answer with HTTP: BadStatusLine"),
        (b"HTTP/1.1 200 " + b"x" * 100_000 + b"\r\n\r\n", "did not answer with HTTP: LineTooLong"),
        (b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 1000, "did not answer with HTTP: HTTPException"),
    ],
)
def test_the_head_of_a_response_decides(answer: bytes, problem: str) -> None:
    """The server never ends its response: the probe does not wait for the rest."""
    assert tried(answer) == problem


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\na: b\r\n"])
def test_a_response_without_an_end_of_its_head_fails_in_time(answer: bytes) -> None:
    assert tried(answer, seconds=SHORT) == "timed out after 0.2 s"


def test_a_check_that_is_cancelled_closes_its_connection() -> None:
    async def work() -> None:
        connected, closed = asyncio.Event(), asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connected.set()
            await reader.read()
            closed.set()
            writer.close()

        serving = await asyncio.start_server(serve, "127.0.0.1", 0)
        async with serving:
            url = f"http://127.0.0.1:{serving.sockets[0].getsockname()[1]}/"
            check = asyncio.create_task(Probing(ca=None).problem(url, seconds=2 * PATIENCE))
            await connected.wait()
            check.cancel()
            async with asyncio.timeout(PATIENCE):
                await closed.wait()

    asyncio.run(work())


def test_a_refused_connection_fails() -> None:
    async def work() -> str:
        async with server(b"") as host:
            pass
        return await Probing(ca=None).problem(f"http://{host}/", seconds=PATIENCE)

    assert asyncio.run(work()) == "Connection refused"


def test_no_proxy_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1/")
    assert tried(b"HTTP/1.1 200 OK\r\n\r\n") == ""


def test_https_is_trusted_by_the_authority_that_is_named(tmp_path: Path) -> None:
    files = Authority(tmp_path).server()
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(files.certificate, files.key)
    answer = b"HTTP/1.1 200 OK\r\n\r\n"
    assert tried(answer, ca=files.ca, tls=tls) == ""
    assert "certificate verify failed" in tried(answer, tls=tls)


@pytest.mark.parametrize(
    ("check", "problem"),
    [
        (("/bin/true",), ""),
        (("/bin/sh", "-c", "exit 3"), "exited 3"),
        (("/bin/sh", "-c", "kill -9 $$"), "was killed by signal 9"),
        (("/bin/no-such-program",), "cannot be started: No such file or directory"),
        (("/bin",), "cannot be started: Permission denied"),
        (("/bin/echo", "$(touch /tmp/x); a && b"), ""),
        (("/bin/sh", "-c", "head -c 10000000 /dev/zero; read line || exit 0; exit 1"), ""),
    ],
)
def test_the_exit_code_of_a_command_decides(check: site.Check, problem: str) -> None:
    assert run(check) == problem


def test_a_command_that_takes_too_long_ends_with_its_children(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    check = ("/bin/sh", "-c", f"sleep 1000 & echo $! > {file}.new; mv {file}.new {file}; wait")
    for seconds in (2.0, 16.0, 64.0):  # long enough for the command to begin
        assert run(check, seconds=seconds) == f"did not end within {show_duration(seconds)}"
        if file.exists():
            break
    pid = int(file.read_text())
    wait_until(lambda: not running(pid), lambda: "what the command started still runs")


def running(pid: int) -> bool:
    """Return whether a process runs: one that is dead and not yet collected does not."""
    try:
        return " Z " not in Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False


def test_a_command_ends_when_its_controller_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "pid"
    command = ("/bin/sh", "-c", f"echo $$ > {file}.new; mv {file}.new {file}; exec sleep 1000")
    with subprocess.Popen([sys.executable, "-c", OPERATOR, *command], cwd=REPOSITORY) as operator:
        pid = int(wait_until(lambda: file.exists() and file.read_text(), lambda: "not started"))
        operator.kill()
    wait_until(lambda: not running(pid), lambda: "the command outlives its controller")

"""What signing, verifying and remembering cost, beside cryptography and a bare fsync.

Keys, certificates and files are made for it and thrown away. Each figure is the median of rounds;
imports and resident memory are measured in fresh interpreters.

    benchmarks/signatures.py [--rounds 5] [--directory DIR]
"""

import argparse
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent
sys.path.insert(0, str(REPOSITORY))

from localpuppet.base.formats.names import SignerName  # noqa: E402
from localpuppet.fleet.trust.authority import Authority  # noqa: E402 - the clone's, wherever it is
from localpuppet.fleet.trust.key_files import OwnKey, TrustedKeys  # noqa: E402
from localpuppet.fleet.trust.seen import SeenIds  # noqa: E402
from localpuppet.fleet.trust.signing import MessageKind, MessageSigner, Verifier  # noqa: E402
from tests.doubles.certificates import Ca, rsa_key, write  # noqa: E402
from tests.doubles.ports import FakeClock  # noqa: E402

ALICE = SignerName.parse("alice")
PAYLOAD = b'{"any": 1}' * 42  # as long as a trigger to three nodes
IMPORTS = {
    "cryptography, Ed25519": "from cryptography.hazmat.primitives.asymmetric import ed25519\n"
    "from cryptography.hazmat.primitives import serialization",
    "joserfc, and that": "from joserfc import jwk, jws",
    "X.509, and those": "from joserfc import jwk, jws\nfrom cryptography import x509",
}
PROBE = """
import time
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 1048576
before, start = resident(), time.perf_counter()
{code}
print((time.perf_counter() - start) * 1000, resident() - before)
"""


def micros(action: Callable[[], object], rounds: int, calls: int) -> float:
    """Return the microseconds of one call."""
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(calls):
            action()
        taken.append((time.perf_counter() - start) / calls * 1e6)
    return statistics.median(taken)


def imports(rounds: int) -> Iterator[str]:
    """Yield a line for each import."""
    for name, code in IMPORTS.items():
        argv = [sys.executable, "-c", PROBE.format(code=code)]
        runs = [
            subprocess.run(argv, capture_output=True, text=True, check=True).stdout.split()
            for _ in range(rounds)
        ]
        taken, grown = (statistics.median(map(float, column)) for column in zip(*runs, strict=True))
        yield f"{name:28} {taken:9.1f} ms {grown:9.1f} MiB"


def pinned(directory: Path, rounds: int) -> Iterator[str]:
    """Yield lines for pinned keys, and for cryptography alone."""
    key = OwnKey(directory / "keys" / "node.pem").make()
    trusted = TrustedKeys(directory / "trusted")
    trusted.pin(ALICE, key.public_key())
    signer, verifier = MessageSigner(ALICE, key), Verifier(trusted, None, FakeClock())
    token = signer.sign(PAYLOAD, MessageKind.TRIGGER)
    raw, public = key.sign(token), key.public_key()
    yield row("Ed25519, bare", lambda: key.sign(token), lambda: public.verify(raw, token), rounds)
    yield row(
        f"Ed25519 ({len(token)} bytes)",
        partial(signer.sign, PAYLOAD, MessageKind.TRIGGER),
        partial(verifier.verify, token, MessageKind.TRIGGER),
        rounds,
    )


def certified(directory: Path, rounds: int) -> Iterator[str]:
    """Yield a line for each kind of certificate, with a revocation list."""
    for name, key, ca in (
        ("EC P-256", None, Ca()),
        ("RSA 2048", rsa_key(0, 2048), Ca(key=rsa_key(1, 2048))),
        ("RSA 4096", rsa_key(2, 4096), Ca(key=rsa_key(3, 4096))),
    ):
        issued = ca.issue(ALICE, key=key)
        files = write(directory / "ca.pem", ca.text), write(directory / "crl.pem", ca.revoke())
        verifier = Verifier(TrustedKeys(directory / "none"), Authority(*files), FakeClock())
        signer = MessageSigner(ALICE, issued.key, certificate=issued.der)
        token = signer.sign(PAYLOAD, MessageKind.TRIGGER)
        yield row(
            f"{name} ({len(token)} bytes)",
            partial(signer.sign, PAYLOAD, MessageKind.TRIGGER),
            partial(verifier.verify, token, MessageKind.TRIGGER),
            rounds,
        )


def row(name: str, sign: Callable[[], object], verify: Callable[[], object], rounds: int) -> str:
    """Return a line of the table."""
    return f"{name:28} {micros(sign, rounds, 50):9.0f} us {micros(verify, rounds, 50):9.0f} us"


def remembered(directory: Path, rounds: int) -> Iterator[str]:
    """Yield lines for the memory of ids, and for one write with fsync on the same disk."""
    seen = SeenIds(directory / "state" / "seen.sqlite", FakeClock())
    numbers = itertools.count()
    far = 2**40

    def add() -> None:
        seen.add("x", str(next(numbers)), far)

    yield f"{'an id':28} {micros(add, rounds, 50):9.0f} us"
    with (directory / "file").open("wb", buffering=0) as file:

        def synced() -> None:
            file.write(b"x" * 64)
            os.fsync(file.fileno())

        yield f"{'64 bytes and fsync':28} {micros(synced, rounds, 50):9.0f} us"
    seen.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, help="where the files are; [a temporary one]")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=options.directory) as name:
        directory = Path(name)
        print(f"{'import':28} {'time':>12} {'memory':>13}", *imports(options.rounds), sep="\n")
        print(f"\n{'message':28} {'sign':>12} {'verify':>12}")
        for measure in (pinned, certified):
            print(*measure(directory, options.rounds), sep="\n")
        print(f"\n{'remember':28} {'time':>12}", *remembered(directory, options.rounds), sep="\n")


if __name__ == "__main__":
    main()

"""The corpus of bad inputs, which each process of a session reads once."""

from pathlib import Path
from typing import Any

import yaml

FILE = Path(__file__).parents[1] / "data" / "bad-inputs.yaml"
# libyaml reads it in a twentieth of the time.
CASES: list[dict[str, Any]] = yaml.load(FILE.read_bytes(), yaml.CSafeLoader)["cases"]

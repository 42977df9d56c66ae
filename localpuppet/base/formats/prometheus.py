"""The text format of node_exporter's textfile collector: samples with help texts.

Format: https://github.com/prometheus/node_exporter#textfile-collector. A sample is a name with its
labels, and a value as text. Label values are names that need no escapes.
"""

import re
from collections.abc import Mapping

_SAMPLE = re.compile(r"^([a-z_]+(?:\{[^}]*\})?) (\S+)$", re.MULTILINE)


def parse_samples(text: str) -> dict[str, str]:
    """Return the samples in a text that `show_samples` made; other lines are ignored."""
    return dict(_SAMPLE.findall(text))


def show_samples(samples: Mapping[str, str], help_texts: Mapping[str, str]) -> str:
    """Return samples as text, in the order of `help_texts`; samples without help are left out."""
    lines = []
    for name, help_text in help_texts.items():
        mine = [key for key in samples if key.partition("{")[0] == name]
        if mine:
            lines += [f"# HELP {name} {help_text}", f"# TYPE {name} gauge"]
            lines += [f"{key} {samples[key]}" for key in mine]
    return "\n".join(lines) + "\n"

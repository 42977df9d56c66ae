"""The text format that node_exporter's textfile collector reads: samples, with help.

The format: https://github.com/prometheus/node_exporter#textfile-collector. A sample is a name, with
its labels, and a value as text; values of labels are of names that need no escapes.
"""

import re
from collections.abc import Mapping

_SAMPLE = re.compile(r"^([a-z_]+(?:\{[^}]*\})?) (\S+)$", re.MULTILINE)


def parse_samples(text: str) -> dict[str, str]:
    """Return the samples of a text that `show_samples` made; what is not one is passed over."""
    return dict(_SAMPLE.findall(text))


def show_samples(samples: Mapping[str, str], help_texts: Mapping[str, str]) -> str:
    """Return samples as text, in the order of their help; those without help are left out."""
    lines = []
    for name, help_text in help_texts.items():
        mine = [key for key in samples if key.partition("{")[0] == name]
        if mine:
            lines += [f"# HELP {name} {help_text}", f"# TYPE {name} gauge"]
            lines += [f"{key} {samples[key]}" for key in mine]
    return "\n".join(lines) + "\n"

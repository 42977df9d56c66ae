"""A rollout that a person starts from the dashboard: its options, its frozen nodes, its plan."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from shlex import join

from localpuppet.base.errors import InvalidInputError
from localpuppet.base.formats.names import NodeName, ReleasePath
from localpuppet.base.formats.text import shown_names
from localpuppet.rollout.execution.options import Amount

Groups = Sequence[Sequence[NodeName]]
# Fields of the form that are options of 'localpuppet rollout run'.
OPTIONS = ("release", "canary", "window", "max_failures")


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutStart:
    """A rollout to start.

    Attributes:
        nodes: Its nodes, as names: a query is not evaluated again.
        options: Option of 'localpuppet rollout run' → value, without empty ones.
    """

    nodes: tuple[NodeName, ...]
    options: Mapping[str, str]

    @classmethod
    def read(cls, form: Mapping[str, str], nodes: Sequence[NodeName]) -> "RolloutStart":
        """Return the rollout that a form describes.

        Raises:
            InvalidInputError: A field is invalid.
        """
        given = {name: form.get(name, "").strip() for name in OPTIONS}
        options = {name: value for name, value in given.items() if value}
        for name, value in options.items():
            if name == "release":
                ReleasePath.parse(value, where="release")
            elif Amount.parse(value, what=name, minimum=0).percent and name != "max_failures":
                raise InvalidInputError("is a percentage, must be a number of nodes", where=name)
        return cls(nodes=tuple(nodes), options=options)

    @property
    def words(self) -> tuple[str, ...]:
        """The words after 'localpuppet rollout run'."""
        options = (f"--{name.replace('_', '-')}={value}" for name, value in self.options.items())
        return ("--nodes", ",".join(self.nodes), *options)

    @property
    def command(self) -> str:
        """The command line that does the same."""
        return f"localpuppet rollout run {join(self.words)}"

    def __str__(self) -> str:
        """Return the request for the log."""
        options = ", ".join(f"{name} {value}" for name, value in self.options.items())
        return f"start a rollout{f' ({options})' if options else ''}"

    @property
    def digest(self) -> str:
        """Identifies nodes and options."""
        return sha256("\n".join(self.words).encode()).hexdigest()

    def consequences(self, groups: Groups, left_out: Sequence[str] = ()) -> tuple[str, ...]:
        """Return the consequences, sentence by sentence, with the plan if it is given.

        Args:
            groups: The plan.
            left_out: The nodes behind that have no running agent.
        """
        release = self.options.get("release")
        runs = f"take {release} and run it" if release else "run the release that they have"
        nodes = "1 node will" if len(self.nodes) == 1 else f"{len(self.nodes)} nodes will"
        limits = [
            f"{name.replace('_', ' ')} {self.options[name]}"
            for name in OPTIONS[1:]
            if name in self.options
        ]
        return (
            f"{nodes} {runs}{', with ' if limits else ''}{', '.join(limits)}.",
            *(f"Group {number}: {shown_names(names)}." for number, names in enumerate(groups, 1)),
            *(
                (f"Left out, without a running agent: {shown_names(left_out)}.",)
                if left_out
                else ()
            ),
            "A separate process controls the rollout on this machine, in your name, even if this"
            " dashboard ends. You can pause and stop it.",
            "The policies of the nodes decide. If a node is not ready, no node runs.",
        )

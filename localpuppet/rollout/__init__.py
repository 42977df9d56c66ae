"""Plans over many nodes, and rollouts that carry them out.

A function that reads or writes the state directory raises `StateError` if the disk refuses;
one that uses the bus raises `UnavailableError` if the bus does not answer in time or denies access.
One that takes what people, files or machines say raises `InvalidInputError` with place and cure,
and one that takes control of a rollout `BusyError` if another process has it.
A method from_dict raises `InvalidInputError` or `KeyError` if the JSON form is malformed;
`events.from_dict` turns both into `StateError`.

plans: `derived`, `diagram`, `plan`, `site`, `site_file`, `svg`.
decides: `deciding`, `events`, `rollout_options`, `rollout_report`, `rollout_view`, `state`.
acts: `checking`, `checkpoints`, `commands`, `deliveries`, `executing`, `journal`, `resuming`,
    `rollout_nodes`.
builds the parts: `app`.
packages: `cli`.
"""

"""Plans over many nodes, and rollouts that carry them out.

A function that reads or writes the state directory raises `StateError` if the disk refuses;
one that uses the bus raises `UnavailableError` if the bus does not answer in time or denies access.
A method from_dict raises `InvalidInputError` or `KeyError` if the JSON form is malformed;
`events.from_dict` turns both into `StateError`.

plans: `derived`, `diagram`, `plan`, `site`, `site_file`, `svg`.
decides: `deciding`, `events`, `rollout_options`, `rollout_report`, `rollout_view`, `state`.
acts: `checking`, `checkpoints`, `commands`, `deliveries`, `executing`, `journal`, `resuming`,
    `rollout_nodes`.
builds the parts: `app`.
packages: `cli`.
"""

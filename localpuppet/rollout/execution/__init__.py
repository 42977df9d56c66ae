"""One execution of a plan: selection, decisions, journal, checkpoints and commands.

A method from_dict raises `InvalidInputError` or `KeyError` if the JSON form is malformed;
`events.from_dict` turns both into `StateError`.

decides: `deciding`, `events`, `options`, `report`, `selecting`, `state`.
acts: `approval`, `checking`, `checkpoints`, `executing`, `fleet`, `journal`, `metrics`, `resuming`.
inner packages: `commands`, `reporting`.
private: `deliveries`, `nodes`.
"""

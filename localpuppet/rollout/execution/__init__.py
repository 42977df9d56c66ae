"""One execution of a plan: selection, decisions, journal, checkpoints and commands.

A method from_dict raises `InvalidInputError` or `KeyError` if the JSON form is malformed;
`events.from_dict` turns both into `StateError`.

decides: `amount`, `approving`, `checkpoint`, `deciding`, `delivery`, `events`, `options`,
  `progress_states`, `report`, `selecting`, `state`, `unready`, `until`.
acts: `checking`, `checkpoints`, `executing`, `fleet`, `journal`, `journals`, `metrics`, `resuming`.
touches the world: `probing`.
inner packages: `changes`, `commands`, `reporting`.
private: `deliveries`, `estimating`, `nodes`, `replies`.
"""

"""One execution of a plan: selection, decisions, journal, checkpoints and commands.

A method from_dict raises `InvalidInputError` or `KeyError` if the JSON form is malformed;
`event_forms.from_dict` turns both into `StateError`.

decides: `amount`, `approving`, `deciding`, `delivery`, `estimating`, `event_forms`, `events`,
    `head`, `options`, `replies`, `report`, `report_page`, `selecting`, `state`, `unready`,
    `until`.
acts: `checking`, `confirmations`, `deliveries`, `executing`, `fleet`, `heads`, `journal`,
    `journals`, `metrics`, `resuming`.
touches the world: `probing`.
ports: `nodes`, `notes`.
inner rooms: `changes`, `turns`, `words`.
"""

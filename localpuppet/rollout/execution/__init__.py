"""One execution of a plan: which nodes run when, what is written down of it, and how it goes on.

decides: `amount`, `approving`, `deciding`, `delivery`, `estimating`, `event_forms`, `events`,
    `head`, `options`, `replies`, `report`, `report_page`, `selecting`, `state`, `unready`,
    `until`.
acts: `checking`, `confirmations`, `deliveries`, `executing`, `fleet`, `heads`, `journal`,
    `journals`, `metrics`, `resuming`.
touches the world: `probing`.
ports: `nodes`, `notes`.
inner rooms: `changes`, `turns`, `words`.
"""

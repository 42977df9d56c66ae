"""One execution of a plan: which nodes run when, what is written down of it, and how it goes on.

decides: `amount`, `deciding`, `events`, `options`, `report`, `selecting`, `state`, `words`.
acts: `checking`, `executing`, `fleet`, `journal`.
touches the world: `probing`.
ports: `nodes`.
"""

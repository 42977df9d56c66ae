"""One execution of a plan: which nodes run when, what is written down of it, and how it goes on.

decides: `amount`, `deciding`, `events`, `options`, `report`, `selecting`, `state`.
acts: `executing`, `fleet`, `journal`.
ports: `nodes`.
"""

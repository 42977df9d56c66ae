"""The page: the fleet in a browser, to look at.

It is given ports and plain values, as the agent is, and does not know where settings are from.
Templates and what browsers load stand in `templates/` and `static/`.

decides: `asked`, `choosing`, `doors`, `ended`, `exporting`, `facts_tree`, `kinds`, `report`,
    `row`.
acts: `app`, `asking`, `feeding`, `fleet`, `live`, `pages`, `pictures`, `sessions`, `showing`,
    `together`.
touches the world: `memory`, `serving`.
"""

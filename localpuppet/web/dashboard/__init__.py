"""The page: the fleet in a browser, to look at, and to have nodes do something.

It is given ports and plain values, as the agent is, and does not know where settings are from.
Templates and what browsers load stand in `templates/` and `static/`.

decides: `dated`, `deeds`, `ended`, `facts_tree`, `kinds`, `problems`, `report`, `row`, `told`.
acts: `acting`, `app`, `asking`, `differing`, `elsewhere`, `entering`, `feeding`, `fleet`,
    `listing`, `live`, `pages`, `pictures`, `rollouts`, `showing`, `staged`, `together`.
touches the world: `memory`, `run_table`, `told_table`.
inner packages: `lists`.
"""

"""The page: the fleet in a browser, to look at, and to have nodes do something.

It is given ports and plain values, as the agent is, and does not know where settings are from.
Templates and what browsers load stand in `templates/` and `static/`.

decides: `actions`, `dated`, `facts_tree`, `kinds`, `problems`, `report`, `reported_rollouts`,
    `row`, `run_results`.
acts: `action_views`, `app`, `difference_views`, `fleet_feed`, `fleet`, `inventory_questions`,
    `listing`, `live`, `login`, `pages`, `pictures`, `remote_rollouts`, `rollouts`,
    `shared_answers`, `staged`, `template_renderer`.
touches the world: `memory`, `reported_table`, `run_table`.
inner packages: `lists`.
"""

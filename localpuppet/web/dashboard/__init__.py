"""The dashboard: shows the fleet in a browser, and lets people send requests to nodes.

It receives ports and plain values, as the agent does, and reads no settings. Templates are in
`templates/`, and files for browsers in `static/`.

decides: `actions`, `dated`, `facts_tree`, `kinds`, `problems`, `report`, `reported_rollouts`,
    `row`, `run_results`.
acts: `action_views`, `app`, `diagram_views`, `difference_views`, `fleet_feed`, `fleet`,
    `inventory_questions`, `listing`, `live`, `login`, `pages`, `pictures`, `remote_rollouts`,
    `rollouts`, `shared_answers`, `staged`, `template_renderer`.
touches the world: `memory`, `reported_table`, `run_table`.
inner packages: `lists`.
"""

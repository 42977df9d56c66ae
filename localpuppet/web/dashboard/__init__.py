"""The dashboard: shows the fleet in a browser, and lets people send requests to nodes.

It receives ports and plain values, as the agent does, and reads no settings. Templates are in
`templates/`, and files for browsers in `static/`.

decides: `report`, `run_results`.
acts: `app`, `fleet`, `fleet_feed`, `inventory_questions`, `live`, `remote_rollouts`,
  `rollouts`, `signing_actor`, `staged`, `view_context`.
touches the world: `memory`, `nodes`.
inner packages: `history`, `lists`, `tables`.
private: `action_views`, `actions`, `diagram_views`, `difference_views`, `facts_tree`, `failures`,
  `find_views`, `list_query`, `listing`, `pages`, `pictures`, `rollout_action_views`,
  `rollout_actions`, `template_renderer`.
"""

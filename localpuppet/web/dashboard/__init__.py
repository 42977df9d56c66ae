"""The dashboard: shows the fleet in a browser, and lets people send requests to nodes.

It receives ports and plain values, as the agent does, and reads no settings. Templates are in
`templates/`, and files for browsers in `static/`.

acts: `fleet`, `fleet_feed`, `inventory_questions`, `live`, `pages`, `releases`,
  `reported_rollouts`, `rollout_previews`, `rollouts`, `signing_actor`, `view_context`.
decides: `actions`, `rollout_actions`.
touches the world: `memory`, `nodes`, `run_table`, `run_queries`.
private: `action_views`, `activity`, `audit_table`, `differences`,
  `finding`, `list_query`, `listing`.
"""

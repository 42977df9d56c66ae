"""Commands for plans and rollouts, and how these are printed.

verbs: `kicks`, `plan`, `rollout_continue`, `rollout_plan`, `rollout_reported`,
    `rollout_run`, `rollout_stop`, `rollout`.
shared by verbs: `changes_text`, `inventory_site`, `plan_text`, `rollout_bus`,
    `rollout_text`, `site_options`.
"""

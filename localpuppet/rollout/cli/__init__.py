"""Commands for plans and rollouts, and how these are printed.

verbs: `kicks`, `order`, `rollout`, `rollout_control`, `rollout_run`.
shared by verbs: `rollout_text`.
"""

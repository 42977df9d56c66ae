"""From settings to the parts that carry a plan out.

acts: `heads`, `rollout`, `site_server`.
"""

"""Build the parts of a rollout from the settings.

acts: `heads`, `rollout`, `site_server`.
"""

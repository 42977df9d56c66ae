"""Build the parts of a rollout from the settings.

acts: `checkpoints`, `rollout`, `site_server`.
"""

"""Build the parts of a rollout from the settings.

acts: `rollout`.
"""

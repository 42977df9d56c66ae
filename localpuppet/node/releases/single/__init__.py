"""Single modules of a manifest: what they are now, brought here, and what changed since.

decides: `moves`.
acts: `fetching`, `outdated`, `resolving`.
"""

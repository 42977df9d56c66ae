"""The Forge: modules by OWNER/NAME and version, as archives.

decides: `versions`.
acts: `archive`, `tar`.
touches the world: `client`.
"""

"""The Forge: modules by OWNER/NAME and version, as archives.

decides: `names`, `versions`.
acts: `archive`, `metadata`.
touches the world: `client`, `directory`, `transfer`.
ports: `ports`.
"""

"""The Forge: modules by OWNER/NAME and version, as archives.

decides: `names`, `versions`.
acts: `archive`, `kept_archives`, `metadata`, `tar`.
touches the world: `client`, `directory`, `transfer`.
ports: `ports`.
"""

"""Files that are handed to other programs: units, routes, Ruby, git's configuration, schemas.

touches the world: `files`.
"""

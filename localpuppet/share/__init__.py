"""Files that are handed to other programs: units, Puppet's routes, Ruby, git's configuration.

touches the world: `files`.
"""

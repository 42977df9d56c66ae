"""Files for other programs: units, routes, Ruby, git's configuration, schemas.

touches the world: `shared_files`.
private: `isolated_start`.
"""

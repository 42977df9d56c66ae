"""Files for other programs: units, routes, Ruby, git's configuration, schemas.

private: `isolated_start`.
"""

"""The order in which the nodes of a site run, derived from its applications; pictures of it.

decides: `derived`, `diagram`, `plan`, `site`, `svg`.
acts: `site_file`.
touches the world: `srv_records`.
private: `levels`.
"""

"""The order in which the nodes of a site run, derived from its applications; pictures of it.

decides: `check`, `derived`, `diagram`, `kick_diagram`, `plan`, `plan_diagram`, `site`, `svg`.
acts: `service`, `site_file`.
touches the world: `graphviz`, `srv_records`.
private: `levels`.
"""

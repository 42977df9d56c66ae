"""In which order the nodes of a site run, from what it says of its applications; who kicks whom.

decides: `check`, `derived`, `diagram`, `kick_diagram`, `levels`, `plan`, `plan_diagram`, `site`,
    `svg`.
acts: `service`, `site_file`.
touches the world: `graphviz`, `srv_records`.
"""

"""In which order the nodes of a site run, from what it says of its applications; who kicks whom.

decides: `check`, `derived`, `graph`, `levels`, `site`, `plan`, `picture`, `dot`, `svg`,
    `svg_parts`.
acts: `service`, `site_file`.
touches the world: `srv_records`.
inner rooms: `roles`, `rollout`.
"""

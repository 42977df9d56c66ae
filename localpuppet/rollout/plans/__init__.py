"""In which order the nodes of a site run, from what it says of its applications; who kicks whom.

decides: `check`, `derived`, `dot`, `drawing`, `layout`, `levels`, `picture`, `plan`, `site`, `svg`,
    `svg_parts`.
acts: `service`, `site_file`.
touches the world: `srv_records`.
"""

"""From what a site says of its applications to the order in which its nodes run.

decides: `graph`, `levels`, `site`, `plan`, `picture`, `dot`, `svg`.
acts: `site_file`.
"""

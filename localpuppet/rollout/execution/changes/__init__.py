"""What nodes would change, as people approve it, and what they would change beyond that.

decides: `approval`, `comparing`.
"""

"""Rights on the bus that expire, with one holder at a time.

acts: `keeper`, `lease`.
"""

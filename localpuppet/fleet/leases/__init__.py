"""Rights on the bus that expire, one holder at a time.

acts: `book`, `command`, `keeper`, `lease`.
"""

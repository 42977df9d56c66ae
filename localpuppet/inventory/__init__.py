"""Who is there, and what the nodes say of themselves.

decides: `entry`, `presence`, `reading`.
inner rooms: `query`.
"""

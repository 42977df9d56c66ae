"""Find the roles that make other roles run, by kicks, queries and triggers in the inventory.

decides: `links`, `relations`.
private: `readers`.
"""

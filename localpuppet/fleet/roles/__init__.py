"""Which roles make which others run: by kicks, queries and triggers, as the inventory says.

decides: `closing`, `cycles`, `graph`, `links`, `readers`, `relations`.
"""

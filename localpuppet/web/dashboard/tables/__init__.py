"""Tables of the dashboard's memory: each module has the SQL of one kind of data.

decides: `dated`.
touches the world: `reported_table`, `run_table`.
"""

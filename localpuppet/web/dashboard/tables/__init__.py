"""Tables of the dashboard's memory: each module has the SQL of one kind of data.

touches the world: `audit_table`, `run_queries`, `run_table`.
"""

"""Commands that reach other nodes, and the agent.

verbs: `agent`, `assign`, `bus`, `call`, `capture`, `inventory`, `keys`, `lease`, `nodes`,
    `permissions`, `record`, `requests`, `trigger`.
shared by verbs: `additions`, `asking`, `node_table`, `nodes_watch`, `progress`,
    `render_reply`.
"""

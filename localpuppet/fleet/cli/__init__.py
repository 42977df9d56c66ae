"""Commands that reach other nodes, and the agent.

verbs: `agent`, `assign`, `call`, `inventory`, `keys`, `lease`, `nodes`, `permissions`, `record`,
    `requests`, `trigger`.
shared by verbs: `asking`, `nodes_watch`, `progress`, `render_reply`.
"""

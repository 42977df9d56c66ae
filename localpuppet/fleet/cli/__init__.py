"""Commands that reach other nodes, and the agent.

verbs: `agent`, `assign`, `bus`, `call`, `inventory`, `keys`, `lease`, `nodes`, `permissions`,
    `record`, `requests`, `trigger`.
shared by verbs: `additions`, `asking`, `nodes_watch`, `policies`, `progress`, `render_reply`.
"""

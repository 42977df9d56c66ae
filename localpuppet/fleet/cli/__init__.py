"""Commands that reach other nodes, and the agent.

verbs: `agent`, `bus`, `capture`, `inventory`, `joining`, `keys`, `lease`, `nodes`, `requests`,
`sealed`, `sealed_members`, `trigger`.
shared by verbs: `additions`, `node_records`.
"""

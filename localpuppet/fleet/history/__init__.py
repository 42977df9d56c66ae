"""The history of nodes: summaries of their runs, and the requests that they decided.

decides: `audit_record`, `day`, `run_summary`.
acts: `auditing`, `following`, `node_history`, `summarising`.
private: `publishing`.
"""

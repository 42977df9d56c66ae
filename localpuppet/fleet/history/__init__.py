"""The history of nodes: summaries of their runs, and the requests that they decided.

decides: `audit_record`, `day`, `run_summary`.
acts: `history_follower`, `auditing`, `node_history`, `summarising`.
"""

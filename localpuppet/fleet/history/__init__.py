"""The history of nodes: summaries of their runs, and the requests that they decided.

acts: `history_records`, `history_follower`, `node_history`.
"""

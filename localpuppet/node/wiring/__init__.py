"""From a root and its settings to the parts of one node.

acts: `evaluating`, `forge`, `instance`, `makers`, `node`, `ports`, `releases`, `run`.
"""

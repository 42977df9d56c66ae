"""What another release would change on this machine: catalogs of both, compared.

decides: `brief`.
acts: `candidate`, `node_catalogs`.
"""

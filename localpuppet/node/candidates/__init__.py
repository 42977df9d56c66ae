"""What another release would change on this machine: catalogs of both, compared.

acts: `candidate`.
"""

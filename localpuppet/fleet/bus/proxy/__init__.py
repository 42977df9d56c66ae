"""The bus, lent by an agent's network side to its run side.

acts: `server`.
touches the world: `store`.
"""

"""Access to the bus for the agent's run side, through its network side.

acts: `server`.
touches the world: `store`.
"""

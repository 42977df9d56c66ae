"""Access to the bus for the agent's run side, through its network side.

touches the world: `store`.
"""

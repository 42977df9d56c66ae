"""Plans over many nodes, and rollouts that carry them out.

packages: `cli`, `execution`, `plans`, `wiring`.
"""

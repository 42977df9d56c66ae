"""The node's settings in `localpuppet.yaml`, checked, with their defaults.

decides: `node`.
"""

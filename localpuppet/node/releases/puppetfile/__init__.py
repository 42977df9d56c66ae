"""Puppetfiles of r10k and g10k: read as data, and what of them a manifest can name.

decides: `choosing`, `entry`, `origin`, `parsing`, `tokens`.
acts: `asking`, `importing`.
touches the world: `evaluating`.
"""

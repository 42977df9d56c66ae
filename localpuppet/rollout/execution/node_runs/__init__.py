"""Node runs of a rollout: their prerequisites and their results.

decides: `knowing`.
acts: `starting`, `takeover`.
"""

"""The layout of a release: its modulepath, and the link directory that staging makes.

decides: `environment`.
acts: `composing`, `links`.
"""

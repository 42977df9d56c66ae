"""Where things are in a release: its modulepath, and the directory of links that staging makes.

decides: `environment`.
acts: `composing`, `links`.
"""

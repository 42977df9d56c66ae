"""Views over time: charts, and what changed on which node.

decides: `time_chart`.
acts: `views`.
"""

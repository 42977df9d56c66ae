"""What makes nodes run: triggers, their causes and chains, and the outcomes.

decides: `admission`, `cause`, `coalescing`.
acts: `inbox`, `sending`.
"""

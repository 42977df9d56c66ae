"""What makes nodes run: triggers, their causes and chains, and the outcomes.

decides: `admission`, `cause`, `coalescing`, `outcome`.
acts: `awaiting`, `inbox`, `kicks`, `sending`.
"""

"""What makes nodes run: triggers, their causes and chains, and what became of them.

decides: `admission`, `cause`, `chain`, `coalescing`, `outcome`, `trigger`.
acts: `awaiting`, `inbox`, `sending`.
"""

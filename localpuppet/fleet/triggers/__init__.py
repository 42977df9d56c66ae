"""What makes nodes run: triggers, their causes and chains, and the outcomes.

decides: `cause`, `coalescing`.
acts: `trigger_admission`, `inbox`, `sending`.
"""

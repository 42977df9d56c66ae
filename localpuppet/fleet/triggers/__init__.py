"""What makes nodes run: triggers, their causes and chains, and the outcomes.

decides: `admission`, `cause`, `chain`, `change`, `coalescing`, `kick`, `outcome`, `steps`,
  `trigger`.
acts: `awaiting`, `held_kicks`, `inbox`, `kick_sending`, `sending`, `step_table`.
"""

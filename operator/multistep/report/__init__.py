"""Reports of sweeps: statistics with confidence intervals, as a page, table or files. The operator does not use it."""

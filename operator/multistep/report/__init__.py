"""Reports of sweeps: statistics with confidence intervals, as an HTML page, a table or files. Only the CLI uses this package."""

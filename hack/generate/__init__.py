"""Generate files from code: CRDs, reference tables of docs/, the chart's schema. The package runs in `.venv`.

crds          crds/ and the chart's copies, from the API models
reference     tables of the task format, the trial and sweep references, failures
metrics_page  table of docs/reference/metrics.md
compose_page  table of docs/reference/compose.md
cli_page      docs/reference/cli.md
chart         values.schema.json and the tables of docs/reference/chart.md
agent_options the options of Harbor's agents; not part of `make generate`, because it needs a Python with Harbor
"""

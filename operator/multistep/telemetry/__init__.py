"""What the operator reports to Prometheus and OTLP. Logs are in multistep.logs.

metrics          the operator's metrics as a table, from which docs/reference/metrics.md is generated
metric_types     descriptions of metrics, limits of label sets, gauges of phases
export_traces    exports the spans of finished trials
"""

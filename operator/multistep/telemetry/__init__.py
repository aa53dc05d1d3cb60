"""Reports metrics to Prometheus and traces by OTLP. Logs are in multistep.logs.

metrics          the table of the operator's metrics, from which docs/reference/metrics.md is generated
metric_types     descriptions of metrics, metrics with a limited number of label sets, gauges of phases
trial_metrics    counts the transitions of trials: finished steps and trials, failed attempts, model usage
export_traces    exports the spans of finished trials
"""

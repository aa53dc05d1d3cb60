"""One reconcile of one trial.

In: the trial's key. Out: pods, exec sessions, results, status, and when to reconcile again. Open reconcile_trial.py first.

reconciler, reconcile_trial, trial_run         all trials; one reconcile; what its parts share
create_pods, owned_pods, remembered_pods       creates pods; reads and deletes them; facts kept between reconciles
run_sessions, session_state, session_progress  runs operations in exec sessions; state and result of that
service_sessions, service_logs                 sessions and logs of services
switch_networks, model_gateway                 the egress sidecar; tokens and usage of the model gateway
checkpoint_transfers, presigned_uploads, free_space    files between pod, volume and object store
start_from_checkpoint, source_checkpoints, reference_trials, prepare_regrade    trials that start from another trial
end_attempt, complete_results                  the end of an attempt, and of a trial
write_status, emit_trial_events, transition_metrics    status, Events, metrics
"""

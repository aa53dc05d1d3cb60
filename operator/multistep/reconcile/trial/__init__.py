"""One reconcile of one trial.

In: the trial's key. Out: pods, exec sessions, results, status, and when to reconcile again. Open reconcile_trial.py first.

reconciler, reconcile_trial, trial_run     all trials; one reconcile; what its parts share
create_pods, owned_pods                    creates pods; reads, deletes and remembers them
run_sessions, session_state                runs operations in exec sessions; state and result of that
sidecar_sessions                           sessions with services and the egress sidecar
model_gateway                              tokens and usage of the model gateway
checkpoint_transfers, presigned_uploads    files between pod, volume and object store
start_from_checkpoint, source_checkpoints, prepare_regrade    trials that start from another trial
end_attempt, complete_results              the end of an attempt, and of a trial
write_status                               status, Events, metrics
"""

"""One reconcile of one trial.

In: the trial's key. Out: pods, exec sessions, results, status, and when to reconcile again. Open reconcile_trial.py first.

reconcile_trial, trial_run      one reconcile: the loop and its actions; what the actions share
observe, decide_action          task and pods; the next action
end_in_status                   where every error of a reconcile ends
start_attempt, prepare_regrade, start_from_checkpoint, source_checkpoints   first attempts, also those that start from another trial
create_pods, owned_pods         creates pods, also after a rejection; reads and deletes them
pod_hints                       what exec sessions have shown of pods and nodes: which of them breaks sessions
continue_script                 when to open exec sessions, and what follows from their result
run_sessions, session_state     runs operations in exec sessions; state and result of that
sidecar_sessions                sessions with services and the egress sidecar
model_gateway                   tokens and usage of the model gateway
checkpoint_transfers, presigned_uploads    files between pod, volume and object store
end_attempt, complete_results   the end of an attempt, and of a trial
write_status                    status, Events, metrics
reconciler                      composes all of this; events of pods
"""

"""Runs one reconcile of one trial.

In: the trial's key. Out: pods, exec sessions, results, status, and when to reconcile again. Open reconcile_trial.py first.

reconcile_trial          one reconcile, with its loop of actions
trial_run                the state that the actions of a reconcile share
observe                  reads the task and the pods
decide_action            the next action
end_in_status            what happens after each error of a reconcile
start_attempt            starts a trial's first attempt
prepare_regrade, start_from_checkpoint, source_checkpoints   start a trial from the files of another trial
create_pods              creates pods, also after a rejection
owned_pods               reads and deletes a trial's pods
pod_hints                which pods and nodes break exec sessions
continue_script          when to open exec sessions, and what follows from their result
session_blame            whether the pod or the connection caused an error of the sessions
run_sessions             runs operations in exec sessions
session_state            state and result of the exec sessions of one reconcile
sidecar_sessions         sessions with services and the egress sidecar
checkpoint_transfers     stores and restores checkpoints
presigned_uploads        large files from the pod to the object store
end_attempt              the end of an attempt
complete_results         the results of a finished trial
record_history           its row in the history
write_status             the status
emit_events              Events of its transitions, warnings about settings without effect
reconciler               composes these parts, handles events of pods
"""

"""Reconciles trials and sweeps: observes, decides (engine), acts, writes the status.

In: keys of objects, from watch events. Out: requests to the API server and to runners. Open trial/reconcile_trial.py first. A
package imports only those below it:

cluster/      periodic resync, garbage collection
sweep/        one reconcile of a sweep
trial/        one reconcile of a trial
loading/      tasks and images, in the background
queue/        work queue, event filter, what an error means
admission/    limits that are fair between namespaces
"""

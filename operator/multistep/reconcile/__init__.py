"""Reconciles trials and sweeps. A reconcile observes, decides with the functions of engine, acts, and writes the status.

In: keys of objects, from watch events. Out: requests to the API server and to runners. Open trial/reconcile_trial.py first. A
package imports only those below it:

cluster/      periodic resync, garbage collection
sweep/        one reconcile of a sweep
trial/        one reconcile of a trial
models/       access to models through the gateway
loading/      loads tasks and builds images, in the background
queue/        work queue, event filter, what an error means
admission/    limits that are fair between namespaces
"""

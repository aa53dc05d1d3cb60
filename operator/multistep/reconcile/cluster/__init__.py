"""Work that concerns all objects of the cluster and runs every few minutes.

resync               requeues objects whose watch events were missed
garbage_collector    deletes pods and results that belong to no trial
"""

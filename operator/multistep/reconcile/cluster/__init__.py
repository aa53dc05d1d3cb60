"""What concerns all objects of the cluster, every few minutes.

resync               requeues objects whose watch events were missed
garbage_collector    deletes pods and results that belong to no trial
"""

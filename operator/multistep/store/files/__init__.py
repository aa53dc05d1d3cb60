"""Untrusted tar streams and file trees, with limits. Nothing here knows of trials. Links are never followed.

read_tar          parses the tar stream of a runner, in bounded memory
file_trees        writes, walks and deletes trees
redact_secrets    replaces values of secrets in text files
known_digests     digests of files and streams
thread_pool       threads for blocking calls; downloads on the disk before they are unpacked
trial_key         namespace, name and UID of the trial that results belong to; what all stores have in common
"""

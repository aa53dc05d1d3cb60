"""Reads and writes untrusted tar streams and file trees, within limits. Links are never followed.

read_tar          parses the tar stream of a runner, in bounded memory
file_trees        writes, walks and deletes trees
redact_secrets    replaces values of secrets in text files
known_digests     computes digests of files and streams, and caches those of large files
thread_pool       threads for blocking calls, and temporary files for downloads
history_pack      packs of the history, which are gzip of lines
trial_key         namespace, name and UID of a trial, and the protocol of all stores
"""

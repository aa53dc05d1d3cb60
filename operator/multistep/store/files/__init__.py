"""Untrusted tar streams and file trees, with limits. Nothing here knows of trials. Links are never followed.

read_tar            parses the tar stream of a runner, in bounded memory
file_trees          writes, walks and deletes trees
download_buffer     downloads on the disk before they are unpacked
redact_secrets      replaces values of secrets in text files
known_digests       digests of large files that were hashed while they were written
stream_digest       size and digest of a stream
thread_pool         threads for blocking calls
trial_key           namespace, name and UID of the trial that results belong to
"""

"""The token records of a step: for each model request the prompt's and the answer's token ids, and the answer's log-probabilities.

The model gateway writes one file per step, and the Python client reads it. A file consists of zstd frames, and a frame of msgpack
objects, whose ``t`` is their kind: ``head`` (once, first), ``block`` (256 tokens of prompts), ``record`` (a request's choice) and
``close`` (once, last). Token ids are stored as uint32 and log-probabilities as float32, both little-endian.

Prompts of an agent mostly repeat earlier prompts, so a prompt is stored as numbers of blocks and a rest of fewer than 256 tokens,
and equal blocks are stored once. Each frame is complete by itself and has a checksum: if the gateway is killed, at most the frame
that it was writing is lost. A file is complete only if it has a ``close`` that lists nothing as missing. Open record.py first.

record       a record, and what a file contains
write_file   writes a file, also after a crash
read_file    reads a file, within limits
frames       the frames and their objects
"""

#!/bin/bash
for _ in $(seq 600); do [ "$(wc -l < /out/again)" -ge 2 ] && exit 0; sleep 0.1; done; exit 1

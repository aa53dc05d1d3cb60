#!/bin/bash
for _ in $(seq 300); do [ -s /out/third ] && exit 0; sleep 0.1; done; exit 1

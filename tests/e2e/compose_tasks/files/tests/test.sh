#!/bin/bash
cat /shared/facts
wanted="a b secret secret hello world a 440 read-only tmpfs tmpfs tmpfs 1024 2048 4096 copied empty own part"
[ "$(cat /shared/facts | tr '\n' ' ')" = "$wanted " ] && [ "$(cat /shared/answer)" = checked ] \
  && [ "$(stat -f -c %T /work)" = tmpfs ] && [ "$(df --output=size -k /dev/shm | tail -n 1 | tr -d ' ')" = 8192 ] \
  && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt

#!/bin/bash
cat /out/user /out/root /out/again
capabilities=$((16#$(awk '{print $2}' /out/root)))
without_net_raw=$(( (capabilities >> 13 & 1) == 0 && (capabilities & 1) == 0 && (capabilities >> 7 & 1) == 1 ))
[ "$(head -n 4 /out/user | tr '\n' ' ')" = "1000 1001 /tmp read-only " ] && grep -q 'CapBnd:.0000000000000000' /out/user \
  && grep -q 'NoNewPrivs:.1' /out/user && grep -q tty /out/user && [ $without_net_raw = 1 ] && [ "$(wc -l < /out/again)" = 2 ] \
  && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt

#!/bin/bash
tail -n +1 /out/*; getent hosts outside.example six.example one second
[ "$(cat /out/first)" = "1 no" ] && [ "$(cat /out/second)" = "1 no 22:22" ] && [ "$(cat /out/third)" = 2 ] \
  && getent hosts outside.example | grep -q 192.0.2.1 && getent hosts one | grep -q 127.0.0.1 \
  && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt

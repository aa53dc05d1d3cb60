#!/bin/bash
exec 3<>/dev/tcp/judge/7100 && echo hello >&3
wanted=$(cat <&3)
cat /var/log/orders /app/note
[ "$(cat /var/log/orders | tr '\n' ' ')" = "$wanted by 0 " ] && [ "$(cat /app/note)" = main ] \
  && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt

#!/bin/bash
J=
chk() { local n=$1 v=0; shift; "$@" >/dev/null 2>&1 && v=1; J="$J${J:+, }\"$n\": $v"; }
eq() { [ "$1" = "$2" ]; }
put() { echo "{$J}" > /logs/verifier/reward.json; }
chk program test -x /app/run.sh
chk text eq "$(stat -c %a /app/data.txt)" 644
chk deep test -x /app/sub/deep.sh
chk tool test -e /data/tool
put

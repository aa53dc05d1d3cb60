#!/bin/bash
J=
chk() { local n=$1 v=0; shift; "$@" >/dev/null 2>&1 && v=1; J="$J${J:+, }\"$n\": $v"; }
eq() { [ "$1" = "$2" ]; }
put() { echo "{$J}" > /logs/verifier/reward.json; }
chk setup eq "$(cat /data/setup)" /data
chk hc eq "$(cat /data/hc)" /data
chk agent eq "$(cat /data/agent)" /data
chk staged test -f /data/staged.txt
chk verifier eq "$PWD" /data
put

#!/bin/bash
J=
chk() { local n=$1 v=0; shift; "$@" >/dev/null 2>&1 && v=1; J="$J${J:+, }\"$n\": $v"; }
eq() { [ "$1" = "$2" ]; }
put() { echo "{$J}" > /logs/verifier/reward.json; }
want=$'/logs/verifier:\n\n/tests:'
chk setup eq "$(cat /data/setup-saw)" "$want"
chk agent eq "$(cat /data/agent-saw)" "$want"
chk own_only test ! -e /tests/secret.txt
put

#!/bin/bash
J=
chk() { local n=$1 v=0; shift; "$@" >/dev/null 2>&1 && v=1; J="$J${J:+, }\"$n\": $v"; }
eq() { [ "$1" = "$2" ]; }
put() { echo "{$J}" > /logs/verifier/reward.json; }
chk environment eq "$A|$B|$C|$D|$E|$F" 'from-host||default|pre-${HOST}||$HOST'
chk verifier eq "$V" from-host
chk agent eq "$(cat /data/agent)" sol/from-host
put

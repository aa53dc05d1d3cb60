#!/bin/bash
J=
chk() { local n=$1 v=0; shift; "$@" >/dev/null 2>&1 && v=1; J="$J${J:+, }\"$n\": $v"; }
eq() { [ "$1" = "$2" ]; }
put() { echo "{$J}" > /logs/verifier/reward.json; }
chk first eq "$(cat /data/h)" one
chk second eq "$(cat /data/h2)" $'alice\n/app'
put

#!/bin/bash
J=
chk() { local n=$1 v=0; shift; "$@" >/dev/null 2>&1 && v=1; J="$J${J:+, }\"$n\": $v"; }
eq() { [ "$1" = "$2" ]; }
no() { ! "$@"; }
put() { echo "{$J}" > /logs/verifier/reward.json; }
chk tests_not_reset eq "$(cat /app/out.txt)" planted
chk directory_collected_again eq "$(cat /app/tree/x)" x
chk fresh no test -e /data/left
put

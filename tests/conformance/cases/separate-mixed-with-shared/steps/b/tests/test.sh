#!/bin/bash
J=
chk() { local n=$1 v=0; shift; "$@" >/dev/null 2>&1 && v=1; J="$J${J:+, }\"$n\": $v"; }
eq() { [ "$1" = "$2" ]; }
no() { ! "$@"; }
put() { echo "{$J}" > /logs/verifier/reward.json; }
chk other_environment no test -e /data/only-with-agent
chk saw_nothing eq "$(cat /app/saw.txt)" ""
chk not_there no test -e /tests/stays
put

#!/bin/bash
J=
chk() { local n=$1 v=0; shift; "$@" >/dev/null 2>&1 && v=1; J="$J${J:+, }\"$n\": $v"; }
eq() { [ "$1" = "$2" ]; }
put() { echo "{$J}" > /logs/verifier/reward.json; }
chk same cmp -s /app/instruction.txt /tests/want
put

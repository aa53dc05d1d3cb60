#!/bin/bash
J=
chk() { local n=$1 v=0; shift; "$@" >/dev/null 2>&1 && v=1; J="$J${J:+, }\"$n\": $v"; }
eq() { [ "$1" = "$2" ]; }
put() { echo "{$J}" > /logs/verifier/reward.json; }
chk there test -f /app/sub/f
chk not_out test ! -e /data/f
put

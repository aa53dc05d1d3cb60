#!/bin/bash
J=
chk() { local n=$1 v=0; shift; "$@" >/dev/null 2>&1 && v=1; J="$J${J:+, }\"$n\": $v"; }
eq() { [ "$1" = "$2" ]; }
no() { ! "$@"; }
put() { echo "{$J}" > /logs/verifier/reward.json; }
chk at_source eq "$(cat /app/out.txt)" one
chk directory_at_source eq "$(cat /app/tree/x)" x
chk not_at_destination no test -e /app/renamed
chk nothing_else no test -e /app/secret
chk planted_test_gone no test -e /tests/planted
chk own_env eq "$WHERE" judge
chk not_agents_env eq "$ONLY_AGENT" ""
chk verifier_env eq "$V" verifier
chk user eq "$(id -un)" bob
put

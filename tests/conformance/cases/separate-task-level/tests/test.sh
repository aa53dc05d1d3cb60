#!/bin/bash
J=
chk() { local n=$1 v=0; shift; "$@" >/dev/null 2>&1 && v=1; J="$J${J:+, }\"$n\": $v"; }
eq() { [ "$1" = "$2" ]; }
no() { ! "$@"; }
put() { echo "{$J}" > /logs/verifier/reward.json; }
. /tests/helper.sh
chk shared_helper eq "$HELPER" task
chk published eq "$(cat /logs/artifacts/p)" published
chk hook eq "$(cat /data/dump.txt)" dumped
chk no_agent_logs eq "$(ls -A /logs/agent)" ""
chk no_missing no test -e /app/missing
put

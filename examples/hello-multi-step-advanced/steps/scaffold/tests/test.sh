#!/bin/bash
. /tests/helpers.sh
passed=0
[ -x "$SCRIPT" ] && passed=$((passed + 1))
"$SCRIPT" && passed=$((passed + 1))
[ -f NOTES.txt ] && [ ! -e setup.sh ] && passed=$((passed + 1))
reward "$passed" 3

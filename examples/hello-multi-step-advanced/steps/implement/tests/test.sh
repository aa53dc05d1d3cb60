#!/bin/bash
. /tests/helpers.sh
correct=0
prints "$EXPECTED, Ada!" Ada && correct=$((correct + 1))
prints "$(sed "s/.*/$EXPECTED, &!/" names.txt)" && correct=$((correct + 1))
style=0
grep -q '^set -euo pipefail$' "$SCRIPT" && style=1
awk -v c="$correct" -v s="$style" 'BEGIN { printf "{\"reward\": %g, \"correctness\": %g, \"style\": %g}\n", (c / 2 + s) / 2, c / 2, s }' \
    > /logs/verifier/reward.json

#!/bin/bash
set -euo pipefail
cat /app/count.txt
echo "$(cat /app/count.txt) words" > /app/report.md

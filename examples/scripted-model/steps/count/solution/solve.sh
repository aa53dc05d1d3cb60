#!/bin/bash
set -euo pipefail
cat /app/words.txt
wc -l < /app/words.txt > /app/count.txt

#!/bin/bash
set -euo pipefail
printf 'alpha\nbeta\ngamma\n' > /app/words.txt

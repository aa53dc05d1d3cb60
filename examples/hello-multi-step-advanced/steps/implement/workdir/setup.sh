#!/bin/bash
set -euo pipefail
mv names.list names.txt
rm -- "$0"

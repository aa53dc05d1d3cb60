#!/bin/bash
# Runs in WORKDIR before the agent, and takes itself away so that the agent does not see it.
set -euo pipefail
echo "Everything about the greeting goes into this directory." > NOTES.txt
rm -- "$0"

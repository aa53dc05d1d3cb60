#!/bin/bash
. /tests/helpers.sh
passed=0
grep -q 'greet.sh' README.md && passed=$((passed + 1))
grep -q 'Hello, ' README.md && passed=$((passed + 1))
prints "Hello, Ada!" Ada && passed=$((passed + 1)) # the work of the step before is still there
reward "$passed" 3

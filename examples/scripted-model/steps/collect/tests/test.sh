#!/bin/bash
if [ "$(cat /app/words.txt)" = "$(printf 'alpha\nbeta\ngamma')" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt

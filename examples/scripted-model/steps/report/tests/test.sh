#!/bin/bash
if [ "$(cat /app/report.md)" = "3 words" ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt

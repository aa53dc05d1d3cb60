#!/bin/bash
found=$(ask store 7000 hello | tr '\n' ' ')
echo "$found"
[ "$found" = "seeded done " ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt

#!/bin/bash
echo log > /logs/verifier/log.txt
echo 1 > /logs/verifier/reward.txt

#!/bin/bash
cat /tests/value > /logs/verifier/reward.txt

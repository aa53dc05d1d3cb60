#!/bin/bash
cat /tests/also > /logs/verifier/reward.txt

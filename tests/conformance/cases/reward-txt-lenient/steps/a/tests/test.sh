#!/bin/bash
printf '\n +1_0e-1\t\n' > /logs/verifier/reward.txt

#!/bin/bash
printf '  \n' > /logs/verifier/reward.txt

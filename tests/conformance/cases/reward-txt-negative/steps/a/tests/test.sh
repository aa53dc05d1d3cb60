#!/bin/bash
echo -2.5 > /logs/verifier/reward.txt

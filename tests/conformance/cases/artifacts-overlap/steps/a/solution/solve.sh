#!/bin/bash
mkdir dir; echo app > dir/same.txt; echo other > dir/other.txt; echo data > /data/same.txt

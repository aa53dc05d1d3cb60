#!/bin/bash
echo agent > log.txt

#!/bin/bash
echo again >> log.txt

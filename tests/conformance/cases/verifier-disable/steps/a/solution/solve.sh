#!/bin/bash
echo x > x.txt

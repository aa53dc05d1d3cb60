#!/bin/bash
echo ok > 'naïve name.txt'

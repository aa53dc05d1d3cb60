#!/bin/bash
echo checked > /shared/answer

#!/bin/bash
echo s01 >> /data/order

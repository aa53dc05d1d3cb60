#!/bin/bash
echo s02 >> /data/order

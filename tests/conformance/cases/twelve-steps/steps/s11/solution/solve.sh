#!/bin/bash
echo s11 >> /data/order

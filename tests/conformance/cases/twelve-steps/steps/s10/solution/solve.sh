#!/bin/bash
echo s10 >> /data/order

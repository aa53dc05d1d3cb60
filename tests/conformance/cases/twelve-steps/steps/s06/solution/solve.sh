#!/bin/bash
echo s06 >> /data/order

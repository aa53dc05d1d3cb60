#!/bin/bash
{ cat /data/file; tool; pwd; echo "left:$LEFT"; } > /data/b

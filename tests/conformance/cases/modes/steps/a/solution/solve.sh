#!/bin/bash
/solution/tool

#!/bin/bash
# ask HOST PORT LINE: send a line to the server and print what it answers.
exec 3<>"/dev/tcp/$1/$2" && echo "$3" >&3 && cat <&3

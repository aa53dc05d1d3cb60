#!/bin/bash
set -euo pipefail
cat > README.md <<'TEXT'
# greet.sh

Greets the person named by its argument, or everybody in names.txt.

    $ ./greet.sh Ada
    Hello, Ada!
TEXT
cp README.md /logs/artifacts/ # whatever is put there is collected, too

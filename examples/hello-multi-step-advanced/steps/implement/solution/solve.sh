#!/bin/bash
set -euo pipefail
cat > greet.sh <<'SCRIPT'
#!/bin/bash
set -euo pipefail
cd "$(dirname "$0")"
if [ $# -gt 0 ]; then
    echo "Hello, $1!"
else
    while read -r name; do echo "Hello, $name!"; done < names.txt
fi
SCRIPT

#!/bin/bash
export LEFT=1; cd /data; echo f > file; mkdir -p /opt/tool; printf '#!/bin/sh\necho tool\n' > /usr/local/bin/tool; chmod +x /usr/local/bin/tool

// Package names answers the pod's DNS queries for allowed names, and remembers the addresses of these names. The proxy
// asks this package to which allowed name an address belongs. The package never reads /etc/hosts, and reads
// /etc/resolv.conf only before another container runs. The containers of a pod share these files, so root in another
// container can change them.
package names

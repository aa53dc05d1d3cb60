// Package names answers the pod's DNS queries for allowed names, and remembers the addresses of these names. The proxy
// asks it to which allowed name an address belongs.
//
// It never reads /etc/hosts. It reads /etc/resolv.conf only before another container runs: the containers of a pod
// share these files, so root in another container can change them.
package names

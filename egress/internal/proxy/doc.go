// Package proxy forwards the pod's TCP connections to names and addresses that are allowed. The firewall redirects the
// connections to the proxy, which forwards each, or refuses and counts it.
//
// Open proxy.go first: it decides about each connection. sniff.go reads the server's name in the client's first bytes,
// and original.go returns the address to which the client connected.
package proxy

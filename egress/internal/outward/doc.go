// Package outward opens the sidecar's own connections, which the firewall lets out. It gives each socket the firewall's
// mark, and a local port that the kernel does not choose for the pod's connections.
package outward

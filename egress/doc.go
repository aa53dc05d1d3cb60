// Command egress is the sidecar that controls the connections of a trial's pod to other hosts.
//
//	egress serve    closes the pod's network, then serves the control socket
//	egress call     connects stdin and stdout to the control socket
//	egress ready    waits until the network is closed and the runner is installed
//
// main.go connects the packages below internal: control receives the operator's policy, policy compiles it to rules,
// and firewall, names and proxy put the rules in force.
package main

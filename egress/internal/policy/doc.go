// Package policy decides which names and addresses a phase may reach. It does no IO. It compiles the operator's Policy
// to Rules, which the firewall, the name server and the proxy apply.
package policy

// Package policy decides which names and addresses a phase may reach. It does no IO. The operator's Policy comes in,
// and compiled Rules go out, which the firewall, the name server and the proxy apply.
package policy

// Package firewall manages the nftables table of the pod's network namespace, through which every packet of the pod
// passes. It puts compiled rules (package policy) in force, and returns the counts of refused packets.
//
// Open firewall.go first: it decides which packets pass. expressions.go builds the parts of a rule, listed.go puts the
// allowed addresses into sets, and lookups.go makes the kernel forget earlier DNS lookups.
package firewall

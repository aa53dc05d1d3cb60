// Package refusals counts refused attempts by their targets, in bounded memory. The firewall, the name server and the
// proxy add attempts. At each switch of the policy, the operator gets a Report with the highest counts.
package refusals

// Package refusals counts refused attempts by their targets, in bounded memory. The firewall, the name server and the
// proxy add attempts, and a Report with the highest counts goes out at each switch of the policy.
package refusals

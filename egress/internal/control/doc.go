// Package control serves the operator's requests to switch the pod's policy, on a socket that only this container can
// reach. A Request has a policy. The Answer has the attempts that were refused until then. Each is a line of JSON.
package control

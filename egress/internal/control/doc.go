// Package control serves the operator's requests to switch the pod's policy, on a socket that only this container can
// reach. A Request with a policy comes in, and an Answer with the attempts refused so far goes out, each as a line of
// JSON.
package control

// Package ready responds to HTTP readiness probes. It does not use net/http, because all processes in the pod's network
// can connect, and the memory of PID 1 must stay small whatever they send, and because net/http would slow every start
// of this program.
package ready

// Package ready responds to HTTP readiness probes. It does not use net/http, which would slow every start of this
// program. All processes in the pod's network can connect, and the memory of PID 1 must stay small whatever they send.
package ready

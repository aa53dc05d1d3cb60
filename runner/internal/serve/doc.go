// Package serve implements `runner serve`, the program of PID 1. It accepts connections, and package session handles
// their requests. Open serve.go first, which starts PID 1 and accepts callers. once.go serves one session in a
// container whose PID 1 is a service. frozen.go and moved.go end PID 1 when an agent froze it or moved its program.
package serve

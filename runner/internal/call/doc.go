// Package call implements `runner call`, which relays stdin and stdout to PID 1. The operator starts it with exec, so
// that a session of the runner protocol runs over the exec session's streams.
package call

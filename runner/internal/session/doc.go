// Package session implements one session of the runner protocol: requests and responses, strictly in order. Frames with
// requests (packages frames and wire) come in, and a response to each goes out.
//
// Open session.go first, then operations.go, which assigns a handler to each op. transfer.go, checkpoint.go, restore.go
// and inspect.go hold the handlers of these requests. guest.go serves guests, sealed.go serves callers whose messages
// are sealed, and host.go relays such messages. limits.go limits the time of checkpoints and restores. alive.go and
// watch.go notice that a caller is gone.
package session

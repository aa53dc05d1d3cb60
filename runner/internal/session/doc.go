// Package session implements one session of the runner protocol. It reads requests (packages frames and wire), and
// responds to them strictly in order.
//
// Open session.go first, then operations.go, which assigns a handler to each op. transfer.go, checkpoint.go, restore.go
// and inspect.go have the handlers of these requests. guest.go serves guests, sealed.go serves callers whose messages
// are sealed, and host.go relays such messages. limits.go limits the time of checkpoints and restores. alive.go and
// watch.go notice that a caller has disconnected.
package session

// Package wire defines the protocol's requests and responses as Go types. Decode turns a request's JSON into its type,
// and Check rejects invalid values. Open wire.go first, which has the versions, the errors, and the requests of phases
// and transfers. checkpoint.go has the requests of checkpoints and restores, guest.go those of guests, host.go the one
// to the agent host's runner, and inspect.go those that search for tampering.
package wire

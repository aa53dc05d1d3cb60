// Package wire defines the protocol's requests and responses as Go types. Decode turns a request's JSON into its type,
// and Check rejects invalid values.
//
// Open wire.go first: it has the versions, the errors, and the requests of phases and transfers. checkpoint.go has
// those of checkpoints and restores, guest.go those that concern guests, host.go the one to the agent host's runner,
// and inspect.go those that look for tampering.
package wire

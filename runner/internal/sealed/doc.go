// Package sealed encrypts and authenticates the operator's messages to a runner. Another container's runner relays
// them, and an agent may control that container.
//
// A message is a nonce and the AES-256-GCM ciphertext. An answer is bound to its request by the request's nonce. A
// repeated request does no harm, because the runner runs each id at most once.
package sealed

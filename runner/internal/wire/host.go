// Defines the request whose sealed message is for the agent host's runner.

package wire

// Host is the `host` request, which has a message for the agent host's runner.
type Host struct {
	Op
	Message Sealed `json:"message"`
}

// Sealed is a message that only the operator and the agent host's runner can read (package sealed).
type Sealed struct {
	Sealed []byte `json:"sealed"`
}

// Check accepts every request, because the agent host's runner checks the message.
func (h Host) Check() error { return nil }

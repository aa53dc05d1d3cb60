// Defines the requests that admit and dismiss guests, and those that guests send.

package wire

import (
	"errors"
	"strings"
)

// Admit is the `admit` request, which permits guests (package guests) to act as User, or as any user if Root is set.
type Admit struct {
	Op
	User string `json:"user"`
	Root bool   `json:"root"`
}

// Check rejects a user with a NUL byte.
func (a Admit) Check() error {
	if strings.ContainsRune(a.User, 0) {
		return errors.New("a NUL in user")
	}
	return nil
}

// AdmitResult is the result of an admit. It is a token in hexadecimal digits, or an error if the user does not exist.
type AdmitResult struct {
	Token string `json:"token,omitempty"`
	Error *Error `json:"error,omitempty"`
}

// Dismiss is the `dismiss` request, which ends an admission. Admission is the id of the `admit` request that created it. If Kill is
// set, the request also kills the background processes that the guests' commands left running.
type Dismiss struct {
	Op
	Admission string `json:"admission"`
	Kill      bool   `json:"kill"`
}

// NewDismiss returns a request with the defaults of optional fields.
func NewDismiss() Dismiss { return Dismiss{Kill: true} }

// Check accepts every request. If the admission does not exist, Found is false in the result.
func (d Dismiss) Check() error { return nil }

// DismissResult is the result of a dismiss. Error is set if processes could not be killed.
type DismissResult struct {
	Found bool   `json:"found"`
	Error *Error `json:"error,omitempty"`
}

// Exec is a guest's `exec` request, which runs a command, and returns its output and result.
type Exec struct {
	Op
	Command
	Stdin          string   `json:"stdin"` // a secret, which no error contains
	TimeoutSeconds *float64 `json:"timeoutSeconds"`
}

// Check rejects invalid fields.
func (e Exec) Check() error {
	if err := checkStdin(e.Stdin); err != nil {
		return err
	}
	return e.Command.Check()
}

// Serves callers of another container whose messages the operator has sealed.

package session

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"multistep.dev/runner/internal/frames"
	"multistep.dev/runner/internal/wire"
)

const (
	maxSealed    = 16              // maximum number of sealed sessions. If all are in use, the operator uses an exec session instead
	sealedProof  = 5 * time.Second // timeout for the first message
	maxUnproven  = 4 << 10         // maximum bytes of the first message, whose sender is not authenticated yet
	frameHeader  = 5
	sealedBuffer = 4 << 10
)

// sealedOps lists the ops of sealed requests, whose requests and answers are single frames.
var sealedOps = []string{"hello", "start", "wait", "output", "ack", "note"}

var sealedSlots = make(chan struct{}, maxSealed)

// AcceptSealed starts the session of a caller from another container, whose messages the operator has sealed (package sealed). It
// returns false, and does not use the connection, if the operator gave this container no key or if maxSealed sessions exist.
func (r *Runner) AcceptSealed(conn *net.UnixConn) bool {
	if !r.Key.Exists() {
		return false
	}
	select {
	case sealedSlots <- struct{}{}:
	default:
		return false
	}
	go func() {
		defer func() { <-sealedSlots }()
		r.serveSealed(conn)
	}()
	return true
}

// serveSealed handles requests until it cannot open one, or the connection breaks. It logs no error, because any process in the pod
// can connect.
func (r *Runner) serveSealed(conn *net.UnixConn) error {
	defer conn.Close()
	unproven := time.AfterFunc(sealedProof, func() { conn.Close() })
	defer unproven.Stop()
	timed := &timeoutConn{conn, readTimeout, writeTimeout}
	reader, limit := frames.NewReaderSize(timed, sealedBuffer), maxUnproven
	var answer bytes.Buffer
	session := Session{Runner: r, conn: timed, stream: &answer}
	for {
		kind, length, err := reader.Next()
		if err != nil {
			return err
		}
		if kind != frames.JSON || length > limit {
			return fmt.Errorf("a frame %c of %d bytes", kind, length)
		}
		nonce, err := session.unseal(reader)
		if err != nil {
			return err
		}
		unproven.Stop()
		limit = frames.MaxJSON
		message := wire.Sealed{Sealed: r.Key.Answer(answer.Bytes()[frameHeader:], nonce)}
		answer.Reset()
		if err := frames.WriteJSON(timed, frames.JSON, struct {
			OK bool `json:"ok"`
			wire.Sealed
		}{answerOK, message}); err != nil {
			return err
		}
	}
}

// unseal decrypts a message, and handles its request. It returns the request's nonce, and writes the answer's frame to the
// session's stream.
func (s *Session) unseal(reader *frames.Reader) (nonce []byte, err error) {
	payload, err := reader.Payload()
	if err != nil {
		return nil, err
	}
	var message wire.Sealed
	if err := wire.Decode(payload, &message); err != nil {
		return nil, err
	}
	request, nonce, err := s.Key.Open(message.Sealed)
	if err != nil {
		return nil, err
	}
	var op wire.Op
	if err := json.Unmarshal(request, &op); err != nil {
		return nil, err
	}
	if !slices.Contains(sealedOps, op.Op) {
		return nil, errors.New("an op that cannot be sealed")
	}
	return nonce, s.dispatch(op, request)
}

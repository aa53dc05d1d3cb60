// Verifies that guest and runner both know the token. Neither of them sends it.

package guests

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"time"

	"multistep.dev/runner/internal/frames"
	"multistep.dev/runner/internal/wire"
)

const (
	handshakeTimeout = 5 * time.Second
	maxHandshake     = 4 << 10 // maximum bytes of a frame, small because its sender is not authenticated yet
	nonceBytes       = 32
	minNonce         = 32 // minimum number of hexadecimal digits
	maxNonce         = 128
)

// question is a guest's first message of the handshake.
type question struct {
	Admission string `json:"admission"`
	Nonce     string `json:"nonce"`
}

// proof is a guest's second message of the handshake.
type proof struct {
	Proof string `json:"proof"`
}

// reply is the runner's response to a question and to a proof.
type reply struct {
	OK    bool   `json:"ok"`
	Nonce string `json:"nonce,omitempty"`
	Proof string `json:"proof,omitempty"`
}

// Handshake proves to the guest that it is connected to PID 1, verifies that the guest knows the token of an admission, and
// returns this admission. On an error the caller must reject the guest. No error contains a token or a proof.
func (c *Connection) Handshake(reader *frames.Reader) (*Admission, error) {
	c.SetDeadline(time.Now().Add(handshakeTimeout))
	var first question
	if err := receive(reader, &first); err != nil {
		return nil, err
	}
	if _, err := hex.DecodeString(first.Nonce); err != nil || len(first.Nonce) < minNonce || len(first.Nonce) > maxNonce {
		return nil, fmt.Errorf("the nonce is not %d to %d hexadecimal digits", minNonce, maxNonce)
	}
	admission := c.admissions.find(first.Admission)
	if admission == nil {
		return nil, fmt.Errorf("no admission %.200q", first.Admission)
	}
	secret := make([]byte, nonceBytes)
	rand.Read(secret)
	nonce := hex.EncodeToString(secret)
	if err := frames.WriteJSON(c, frames.JSON, reply{true, nonce, proofOf(admission.token, "runner", first.Nonce, nonce)}); err != nil {
		return nil, err
	}
	var second proof
	if err := receive(reader, &second); err != nil {
		return nil, err
	}
	if !hmac.Equal([]byte(second.Proof), []byte(proofOf(admission.token, "guest", nonce, first.Nonce))) {
		return nil, errors.New("the proof is wrong")
	}
	return c.accept(first.Admission, admission)
}

func (c *Connection) accept(id string, admission *Admission) (*Admission, error) {
	if !c.join(id, admission) {
		return nil, fmt.Errorf("no admission %.200q any more", id)
	}
	c.SetDeadline(time.Time{})
	return admission, frames.WriteJSON(c, frames.JSON, reply{OK: true})
}

// receive reads a message of the handshake, which is a small JSON object.
func receive(reader *frames.Reader, into any) error {
	kind, length, err := reader.Next()
	if err != nil {
		return err
	}
	if kind != frames.JSON || length > maxHandshake {
		return fmt.Errorf("not a handshake: frame %c of %d bytes", kind, length)
	}
	payload, err := io.ReadAll(reader)
	if err != nil {
		return err
	}
	return wire.Decode(payload, into)
}

// proofOf returns the HMAC of the parts, each followed by a NUL, in hexadecimal digits.
func proofOf(token []byte, parts ...string) string {
	digest := hmac.New(sha256.New, token)
	for _, part := range parts {
		io.WriteString(digest, part+"\x00")
	}
	return hex.EncodeToString(digest.Sum(nil))
}

package frames

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"time"
)

func TestSignsOfLifeAreNoPartOfABody(t *testing.T) {
	var stream bytes.Buffer
	pulse := NewPulse(&stream)
	body := NewBodyWriter(pulse)
	pulse.Beat(0)
	body.Write([]byte("some"))
	pulse.Beat(0)
	body.Write(bytes.Repeat([]byte("more"), 100_000))
	pulse.Beat(0)
	pulse.Beat(time.Hour) // writes nothing: the last frame was written less than an hour ago
	if err := body.Finish(Trailer{Error: "why"}); err != nil {
		t.Fatal(err)
	}
	received := NewBody(NewReader(bytes.NewReader(stream.Bytes())))
	content, err := io.ReadAll(received)
	if err != nil || len(content) != 400_004 || received.Trailer().Size != 400_004 || received.Trailer().SHA256 != received.SHA256() {
		t.Error(len(content), err, received.Trailer())
	}
	empty := bytes.Count(stream.Bytes(), []byte{Data, 0, 0, 0, 0})
	if empty != 3 {
		t.Error("empty frames:", empty)
	}
}

// wholeFrames is a stream that rejects each write that is not one whole frame. After `limit` whole frames it rejects all writes.
type wholeFrames struct{ limit int }

var errBroken = errors.New("broken")

func (w *wholeFrames) Write(p []byte) (int, error) {
	reader := NewReader(bytes.NewReader(p))
	if _, length, err := reader.Next(); err != nil || length != len(p)-headerBytes {
		return 0, errors.New("a part of a frame")
	}
	if w.limit--; w.limit < 0 {
		return 0, errBroken
	}
	return len(p), nil
}

func TestABodyIsWrittenFrameByFrame(t *testing.T) {
	body := NewBodyWriter(NewPulse(&wholeFrames{limit: 1000}))
	for range 40 {
		if _, err := body.Write(make([]byte, 30_000)); err != nil {
			t.Fatal(err)
		}
	}
	if err := body.Finish(Trailer{Error: string(make([]byte, 5000))}); err != nil {
		t.Error(err)
	}
}

func TestASignOfLifeThatFailsBreaksTheStream(t *testing.T) {
	pulse := NewPulse(&wholeFrames{})
	pulse.Beat(0)
	if err := NewBodyWriter(pulse).Finish(Trailer{}); err != errBroken {
		t.Error(err)
	}
}

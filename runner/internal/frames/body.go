// Reads and writes bodies of several frames, and verifies their size and digest.

package frames

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
)

// Trailer is the payload of the E frame that ends a body. Changed and Unreadable list files of a download.
type Trailer struct {
	Size       int64    `json:"size"`
	SHA256     string   `json:"sha256"`
	Error      string   `json:"error,omitempty"`
	Changed    []string `json:"changed,omitempty"`
	Unreadable []string `json:"unreadable,omitempty"`
}

// Body reads a body, which consists of D frames up to an E frame. Its Read returns io.EOF at the E frame.
type Body struct {
	frames  *Reader
	digest  hash.Hash
	size    int64
	trailer *Trailer
}

// NewBody returns a reader of the body that comes next in frames.
func NewBody(frames *Reader) *Body {
	return &Body{frames: frames, digest: sha256.New()}
}

func (b *Body) Read(p []byte) (int, error) {
	for {
		if b.trailer != nil {
			return 0, io.EOF
		}
		n, err := b.frames.Read(p)
		if n > 0 || err != io.EOF {
			b.digest.Write(p[:n])
			b.size += int64(n)
			return n, err
		}
		if err := b.nextFrame(); err != nil {
			return 0, err
		}
	}
}

func (b *Body) nextFrame() error {
	kind, _, err := b.frames.Next()
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	if err != nil || kind == Data {
		return err
	}
	if kind != End {
		return fmt.Errorf("%w: frame %c inside a body", ErrBroken, kind)
	}
	payload, err := b.frames.Payload()
	if err != nil {
		return err
	}
	trailer := Trailer{}
	if err := json.Unmarshal(payload, &trailer); err != nil {
		return fmt.Errorf("%w: end of a body: %w", ErrBroken, err)
	}
	b.trailer = &trailer
	return nil
}

// Rest discards the rest of the body. After an error the stream is unusable.
func (b *Body) Rest() error {
	_, err := io.Copy(io.Discard, b)
	return err
}

// Size returns the number of bytes read so far.
func (b *Body) Size() int64 { return b.size }

// SHA256 returns the hexadecimal digest of the bytes read so far.
func (b *Body) SHA256() string { return hex.EncodeToString(b.digest.Sum(nil)) }

// Trailer returns the sender's trailer. It panics before the end of the body.
func (b *Body) Trailer() Trailer { return *b.trailer }

// Verify returns an error unless the whole body arrived intact. Call it at the end of the body.
func (b *Body) Verify() error {
	switch {
	case b.trailer == nil:
		return errors.New("the body has not ended")
	case b.trailer.Error != "":
		return fmt.Errorf("the sender gave up: %.500s", b.trailer.Error)
	case b.trailer.Size != b.size:
		return fmt.Errorf("%d bytes came, %d were sent", b.size, b.trailer.Size)
	case b.trailer.SHA256 != b.SHA256():
		return errors.New("the digest is another one")
	}
	return nil
}

// BodyWriter writes a body. It buffers bytes into frames of bodyFrameBytes, and writes each frame with one call of Write.
type BodyWriter struct {
	stream io.Writer
	digest hash.Hash
	size   int64
	buffer []byte // the frame to write next, with its header
}

const bodyFrameBytes = 256 << 10

// NewBodyWriter returns a writer of a body to stream.
func NewBodyWriter(stream io.Writer) *BodyWriter {
	return &BodyWriter{stream: stream, digest: sha256.New(), buffer: header(Data, 0, bodyFrameBytes)}
}

func (w *BodyWriter) Write(p []byte) (int, error) {
	written := 0
	for written < len(p) {
		n := min(len(p)-written, cap(w.buffer)-len(w.buffer))
		w.buffer = append(w.buffer, p[written:written+n]...)
		written += n
		if len(w.buffer) == cap(w.buffer) {
			if err := w.flush(); err != nil {
				return written, err
			}
		}
	}
	return written, nil
}

func (w *BodyWriter) flush() error {
	payload := w.buffer[headerBytes:]
	if len(payload) == 0 {
		return nil
	}
	w.digest.Write(payload)
	w.size += int64(len(payload))
	putHeader(w.buffer, Data, len(payload))
	_, err := w.stream.Write(w.buffer)
	w.buffer = w.buffer[:headerBytes]
	return err
}

// Finish writes the buffered rest of the body and the trailer, whose size and digest it sets.
func (w *BodyWriter) Finish(trailer Trailer) error {
	if err := w.flush(); err != nil {
		return err
	}
	trailer.Size, trailer.SHA256 = w.size, hex.EncodeToString(w.digest.Sum(nil))
	return WriteJSON(w.stream, End, trailer)
}

// Reads and writes single frames.

package frames

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// These are the types of frames.
const (
	JSON = 'J' // a request or a response
	Data = 'D' // bytes of a body
	End  = 'E' // end of a body
)

const (
	headerBytes = 5
	// MaxData is the maximum payload of a D frame in bytes.
	MaxData = 1 << 20
	// MaxJSON is the maximum payload of a J or E frame in bytes. A response may contain captured files.
	MaxJSON = 8 << 20
)

// ErrBroken means that the rest of the stream cannot be parsed.
var ErrBroken = errors.New("broken framing")

// ErrTooLarge means that the payload exceeds MaxJSON and nothing was written.
var ErrTooLarge = errors.New("the answer is too large")

// Reader reads frames. Its Read method reads the current frame's payload and returns io.EOF at the payload's end.
type Reader struct {
	stream *bufio.Reader
	left   int // unread bytes of the current payload
}

// NewReader returns a reader of the frames in stream.
func NewReader(stream io.Reader) *Reader { return NewReaderSize(stream, 64<<10) }

// NewReaderSize is like NewReader, with a buffer of this size in bytes.
func NewReaderSize(stream io.Reader, buffer int) *Reader {
	return &Reader{stream: bufio.NewReaderSize(stream, buffer)}
}

// Next skips the rest of the current frame and returns the type and length of the next one. It returns io.EOF only between frames.
func (r *Reader) Next() (kind byte, length int, err error) {
	if _, err := io.Copy(io.Discard, r); err != nil {
		return 0, 0, err
	}
	var header [headerBytes]byte
	if _, err := io.ReadFull(r.stream, header[:]); err != nil {
		return 0, 0, err
	}
	kind, size := header[0], binary.BigEndian.Uint32(header[1:])
	limit, known := map[byte]uint32{JSON: MaxJSON, Data: MaxData, End: MaxJSON}[kind]
	if !known {
		return 0, 0, fmt.Errorf("%w: frame of unknown type %q", ErrBroken, kind)
	}
	if size > limit {
		return 0, 0, fmt.Errorf("%w: frame %c of %d bytes (limit %d)", ErrBroken, kind, size, limit)
	}
	r.left = int(size)
	return kind, r.left, nil
}

// Read reads from the current frame's payload.
func (r *Reader) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	n, err := r.stream.Read(p[:min(len(p), r.left)])
	r.left -= n
	if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return n, err
}

// Payload reads the rest of the current payload. It allocates memory as bytes arrive, not in advance for the announced length.
func (r *Reader) Payload() ([]byte, error) {
	return io.ReadAll(r)
}

// singleWrite is the maximum size in bytes of a payload that Write copies behind the header, so that one call of stream.Write
// suffices.
const singleWrite = 64 << 10

// Write writes one frame, with a single call of stream.Write unless the payload is large.
func Write(stream io.Writer, kind byte, payload []byte) error {
	if len(payload) <= singleWrite {
		_, err := stream.Write(append(header(kind, len(payload), len(payload)), payload...))
		return err
	}
	if _, err := stream.Write(header(kind, len(payload), 0)); err != nil {
		return err
	}
	_, err := stream.Write(payload)
	return err
}

// header returns the header of a frame, in a slice with capacity for `room` more bytes.
func header(kind byte, length, room int) []byte {
	header := make([]byte, headerBytes, headerBytes+room)
	putHeader(header, kind, length)
	return header
}

func putHeader(header []byte, kind byte, length int) {
	header[0] = kind
	binary.BigEndian.PutUint32(header[1:headerBytes], uint32(length))
}

// WriteJSON writes value as a J or E frame.
func WriteJSON(stream io.Writer, kind byte, value any) error {
	payload, err := json.Marshal(value)
	if err != nil {
		return err
	}
	if len(payload) > MaxJSON {
		return fmt.Errorf("%w: %d bytes (limit %d)", ErrTooLarge, len(payload), MaxJSON)
	}
	return Write(stream, kind, payload)
}

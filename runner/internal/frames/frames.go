// Package frames is the framing of a session: type, length, payload, and bodies of many frames with a digest.
package frames

import (
	"bufio"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// The types of a frame.
const (
	JSON = 'J' // a request or an answer
	Data = 'D' // bytes of a body
	End  = 'E' // end of a body
)

const (
	headerBytes = 5
	// MaxData is the most that a D frame carries.
	MaxData = 1 << 20
	// MaxJSON is the most that a J or E frame carries: an answer may hold captured files.
	MaxJSON = 8 << 20
)

// ErrBroken means that nothing after this point of the stream can be understood.
var ErrBroken = errors.New("broken framing")

// ErrTooLarge means that nothing was written, as no frame may be so large.
var ErrTooLarge = errors.New("the answer is too large")

// Reader reads frames. The payload of a frame is read from the Reader itself, to its io.EOF.
type Reader struct {
	stream *bufio.Reader
	left   int // of the present payload
}

// NewReader reads frames from stream.
func NewReader(stream io.Reader) *Reader {
	return &Reader{stream: bufio.NewReaderSize(stream, 64<<10)}
}

// Next skips what is left of the present frame and returns the next one's type and length; io.EOF between frames only.
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

// Read reads from the present frame's payload.
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

// Payload reads all of the present payload. What is not there yet takes no memory.
func (r *Reader) Payload() ([]byte, error) {
	return io.ReadAll(r)
}

// Write writes one frame by one call of stream.Write when it is small.
func Write(stream io.Writer, kind byte, payload []byte) error {
	header := make([]byte, headerBytes, headerBytes+4096)
	header[0] = kind
	binary.BigEndian.PutUint32(header[1:], uint32(len(payload)))
	if len(payload) <= 4096 {
		_, err := stream.Write(append(header, payload...))
		return err
	}
	if _, err := stream.Write(header); err != nil {
		return err
	}
	_, err := stream.Write(payload)
	return err
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

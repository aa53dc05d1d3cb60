// Reads and writes a manifest line by line, and computes its digest.

package manifest

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
)

// Writer writes a manifest's lines.
type Writer struct {
	out    io.Writer
	line   bytes.Buffer
	encode *json.Encoder
	digest hash.Hash
	bytes  int64
}

// NewWriter writes the header to out and returns a writer of the entries.
func NewWriter(out io.Writer, header Header) (*Writer, error) {
	w := &Writer{out: out, digest: sha256.New()}
	w.encode = json.NewEncoder(&w.line)
	w.encode.SetEscapeHTML(false)
	return w, w.write(header)
}

// Add writes an entry.
func (w *Writer) Add(entry *Entry) error { return w.write(entry) }

func (w *Writer) write(value any) error {
	w.line.Reset()
	if err := w.encode.Encode(value); err != nil {
		return err
	}
	if w.line.Len() > maxLine {
		return fmt.Errorf("a line of %d bytes (at most %d)", w.line.Len(), maxLine)
	}
	w.digest.Write(w.line.Bytes())
	w.bytes += int64(w.line.Len())
	_, err := w.out.Write(w.line.Bytes())
	return err
}

// Bytes returns the number of bytes written so far.
func (w *Writer) Bytes() int64 { return w.bytes }

// SHA256 returns the hexadecimal digest of the lines written so far.
func (w *Writer) SHA256() string { return hex.EncodeToString(w.digest.Sum(nil)) }

// maxLine is the maximum size of a line in bytes. No valid entry reaches it.
const maxLine = 16 << 20

// Reader reads a manifest and rejects entries that are invalid or not in order.
type Reader struct {
	Header Header
	in     *bufio.Reader
	digest hash.Hash
	last   []byte
	second bool
}

// NewReader reads the header.
func NewReader(in io.Reader) (*Reader, error) {
	r := &Reader{in: bufio.NewReaderSize(in, 64<<10), digest: sha256.New()}
	line, err := r.line()
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(line, &r.Header); err != nil {
		return nil, fmt.Errorf("first line: %w", err)
	}
	if r.Header.Version != Version {
		return nil, fmt.Errorf("a manifest of version %d", r.Header.Version)
	}
	return r, nil
}

// Next returns the next entry, or io.EOF at the end.
func (r *Reader) Next() (*Entry, error) {
	line, err := r.line()
	if err != nil {
		return nil, err
	}
	entry := &Entry{}
	if err := json.Unmarshal(line, entry); err != nil {
		return nil, err
	}
	if err := entry.Check(); err != nil {
		return nil, fmt.Errorf("%.300q: %w", string(entry.Path), err)
	}
	if r.last != nil && Compare(r.last, []byte(entry.Path)) >= 0 && !r.restart(entry) {
		return nil, fmt.Errorf("%.300q is not in order", string(entry.Path))
	}
	r.last = append(r.last[:0], entry.Path...)
	return entry, nil
}

// restart returns whether the entry starts the second sequence, which has further names of files of the first sequence.
func (r *Reader) restart(entry *Entry) bool {
	first := !r.second && entry.Path == "/" && entry.Type == Directory
	r.second = true
	return first
}

// SHA256 returns the hexadecimal digest of the lines read so far.
func (r *Reader) SHA256() string { return hex.EncodeToString(r.digest.Sum(nil)) }

func (r *Reader) line() ([]byte, error) {
	var line []byte
	for {
		part, err := r.in.ReadSlice('\n')
		r.digest.Write(part)
		if line == nil && err == nil {
			return part, nil
		}
		line = append(line, part...)
		switch {
		case err == nil:
			return line, nil
		case err == io.EOF && len(line) == 0:
			return nil, io.EOF
		case err == io.EOF:
			return nil, io.ErrUnexpectedEOF
		case !errors.Is(err, bufio.ErrBufferFull):
			return nil, err
		case len(line) > maxLine:
			return nil, errors.New("a line is too long")
		}
	}
}

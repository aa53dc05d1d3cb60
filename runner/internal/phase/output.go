// Copies a command's output to a file of limited size or to a caller, and keeps the end of the output in memory.

package phase

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"unicode/utf8"
)

const copyBytes = 32 << 10

// maxPipe is the largest capacity of a pipe in bytes, unless root raised the kernel's limit.
const maxPipe = 1 << 20

// output copies a phase's output to a file of limited size and keeps the tail in memory, or passes the output to passOn. It reads
// until all writers have closed the pipe, even after the phase's end, so that no writer gets SIGPIPE.
type output struct {
	mu        sync.Mutex
	pipe      *os.File
	conn      syscall.RawConn
	passOn    func([]byte) // nil if not requested or after end. While a call blocks, the writers block, too
	file      *os.File     // nil if no file was requested, or after an error
	left      int64        // bytes until the file reaches limit
	limit     int64
	tail      []byte // end of the output, at most twice tailLimit bytes
	tailLimit int
	bytes     int64
	truncated bool
	buffer    []byte
	writing   bool // whether output still writes to the file
	kept      bool // whether the file stays open for reading
}

// newOutput starts to copy output to file, and returns the pipe's write end. The output closes file later, and newOutput closes it
// on an error.
func newOutput(file *os.File, limit int64, tailLimit int) (*output, int, error) {
	return open(&output{file: file, left: limit, limit: limit, tailLimit: tailLimit, writing: true})
}

// newStream starts to pass output to passOn, and returns the pipe's write end. passOn must not keep its argument, whose memory is
// reused.
func newStream(passOn func([]byte)) (*output, int, error) {
	return open(&output{passOn: passOn})
}

func open(o *output) (*output, int, error) {
	o.buffer = make([]byte, copyBytes)
	var ends [2]int
	if err := syscall.Pipe2(ends[:], syscall.O_CLOEXEC); err != nil {
		o.dropFile()
		return nil, -1, err
	}
	// Only the read end is non-blocking, because programs do not expect a non-blocking write end.
	err := syscall.SetNonblock(ends[0], true)
	o.pipe = os.NewFile(uintptr(ends[0]), "output")
	if err == nil {
		o.conn, err = o.pipe.SyscallConn()
	}
	if err != nil {
		o.dropFile()
		o.pipe.Close()
		syscall.Close(ends[1])
		return nil, -1, err
	}
	go o.copy()
	return o, ends[1], nil
}

func (o *output) copy() {
	for {
		more := false
		err := o.conn.Read(func(fd uintptr) bool {
			n, blocked := o.readOnce(int(fd))
			more = n > 0
			return !blocked
		})
		if err != nil || !more {
			break
		}
	}
	o.release()
	o.pipe.Close() // without the lock, because Close waits until drain releases the descriptor, and drain waits for the lock
}

func (o *output) release() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.dropFile()
	o.buffer = nil
}

// drain reads the bytes that the pipe holds now, at most its capacity, because a background process may write forever.
func (o *output) drain() {
	o.conn.Control(func(fd uintptr) {
		for taken := 0; taken < maxPipe; {
			n, _ := o.readOnce(int(fd))
			if n <= 0 {
				return
			}
			taken += n
		}
	})
}

func (o *output) readOnce(fd int) (n int, blocked bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for {
		n, err := syscall.Read(fd, o.buffer)
		if err == syscall.EINTR {
			continue
		}
		if n > 0 {
			o.take(o.buffer[:n])
		}
		return n, err == syscall.EAGAIN
	}
}

func (o *output) take(data []byte) {
	o.bytes += int64(len(data))
	o.remember(data)
	if o.passOn != nil {
		o.passOn(data)
	}
	if o.file == nil || !o.writing {
		return
	}
	fits := data[:min(int64(len(data)), o.left)]
	o.left -= int64(len(fits))
	_, err := o.file.Write(fits)
	switch {
	case err != nil: // e.g. the disk is full, so the phase continues without the file
		o.truncated = true
		o.dropFile()
	case len(fits) < len(data):
		o.truncated = true
		fmt.Fprintf(o.file, "\n[multistep: the output was cut here, at %d bytes]\n", o.limit)
		o.dropFile()
	}
}

func (o *output) remember(data []byte) {
	data = data[max(0, len(data)-o.tailLimit):]
	if len(o.tail)+len(data) > 2*o.tailLimit {
		o.tail = append(o.tail[:0], o.tail[max(0, len(o.tail)-o.tailLimit):]...)
	}
	o.tail = append(o.tail, data...)
}

// dropFile stops writing to the file, and closes it unless it is kept for reading.
func (o *output) dropFile() {
	o.writing = false
	o.closeUnused()
}

func (o *output) closeUnused() {
	if o.file != nil && !o.writing && !o.kept {
		o.file.Close()
		o.file = nil
	}
}

// end returns the output's tail, the output's size in bytes, and whether the file was truncated. It releases the tail's memory, and
// later output is not passed to passOn.
func (o *output) end() (tail string, bytes int64, truncated bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	tail = text(o.tail[max(0, len(o.tail)-o.tailLimit):], o.bytes > int64(o.tailLimit))
	o.tail, o.tailLimit, o.passOn = nil, 0, nil
	return tail, o.bytes, o.truncated
}

// text returns a tail as valid UTF-8. If the tail was cut, the text starts at a whole character.
func text(tail []byte, cut bool) string {
	for range utf8.UTFMax - 1 {
		if cut && len(tail) > 0 && !utf8.RuneStart(tail[0]) {
			tail = tail[1:]
		}
	}
	return strings.ToValidUTF8(string(tail), "\uFFFD")
}

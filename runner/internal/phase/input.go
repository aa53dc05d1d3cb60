// Writes the text of a request to the command's stdin.

package phase

import (
	"io"
	"os"
	"syscall"
)

// input is the stdin of a command. It is /dev/null, or a pipe to which feed writes the request's text.
type input struct {
	text string
	read int      // the pipe's read end, or the descriptor of /dev/null
	pipe *os.File // the pipe's write end, or nil without a text
}

func (h *Host) newInput(text string) (input, error) {
	if text == "" {
		return input{read: int(h.Null.Fd())}, nil
	}
	var ends [2]int
	if err := syscall.Pipe2(ends[:], syscall.O_CLOEXEC); err != nil {
		return input{}, err
	}
	// Only the write end is non-blocking, because programs do not expect a non-blocking read end.
	if err := syscall.SetNonblock(ends[1], true); err != nil {
		syscall.Close(ends[0])
		syscall.Close(ends[1])
		return input{}, err
	}
	return input{text, ends[0], os.NewFile(uintptr(ends[1]), "input")}, nil
}

// feed writes the text in the background, because a pipe holds less than the largest text. Writing ends when the command has read
// the text, or no process has the read end open any more. Call feed after the command was started, or failed to start.
func (i input) feed() {
	if i.pipe == nil {
		return
	}
	syscall.Close(i.read)
	go func() {
		io.WriteString(i.pipe, i.text)
		i.pipe.Close()
	}()
}

// Package supervise is `runner phase`: the process that one phase runs under.
//
// It is a subreaper, so that everything the phase starts stays below it, however it forks; it stays as long as
// anything does, which is how PID 1 knows for good what belongs to whom. It decides nothing: PID 1 keeps the time and
// kills, since a phase that runs as root could stop or kill a supervisor.
package supervise

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"syscall"

	"multistep.dev/runner/internal/kernel"
	"multistep.dev/runner/internal/users"
	"multistep.dev/runner/internal/wire"
)

// Spec is what to run, sent by PID 1 on SpecFD.
type Spec struct {
	Argv []string   `json:"argv"`
	Env  [][]byte   `json:"env"` // bytes: JSON would spoil what is no UTF-8
	Cwd  string     `json:"cwd"`
	User users.User `json:"user"`
}

// Report is one line to PID 1 on ReportFD: first PID, then Error or Status.
type Report struct {
	PID    int         `json:"pid,omitempty"`
	Error  *wire.Error `json:"error,omitempty"`
	Status *int        `json:"status,omitempty"` // as wait gives it
}

// Descriptors that PID 1 hands over beside stdin (/dev/null), stdout and stderr (the pipe of the output).
const (
	SpecFD   = 3
	ReportFD = 4
)

// Arguments of the command line that PID 1 starts.
var Arguments = []string{"runner", "phase"}

const becomeArgument = "become"

// Main is the command `runner phase`.
func Main(args []string) error {
	if len(args) == 1 && args[0] == becomeArgument {
		return become()
	}
	report := os.NewFile(ReportFD, "report")
	syscall.CloseOnExec(SpecFD)
	syscall.CloseOnExec(ReportFD)
	if err := supervise(json.NewEncoder(report)); err != nil {
		json.NewEncoder(report).Encode(Report{Error: wire.Errorf("Internal", "supervisor: %v", err)})
	}
	return nil
}

func supervise(report *json.Encoder) error {
	if err := kernel.BecomeSubreaper(); err != nil {
		return err
	}
	failure, failed, err := os.Pipe()
	if err != nil {
		return err
	}
	pid, err := syscall.ForkExec(kernel.SelfExe, append(Arguments, becomeArgument), &syscall.ProcAttr{
		Env:   os.Environ(),
		Files: []uintptr{0, 1, 2, SpecFD, failed.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return err
	}
	letGo(failed)
	report.Encode(Report{PID: pid})
	if message, _ := io.ReadAll(failure); len(message) > 0 { // it ends when the command replaced our program
		report.Encode(json.RawMessage(message))
	}
	reap(pid, report)
	return nil
}

// letGo closes what only the command is to hold: while we hold the output, PID 1 sees no end of it.
func letGo(failed *os.File) {
	failed.Close()
	syscall.Close(SpecFD)
	syscall.Dup3(0, 1, 0)
	syscall.Dup3(0, 2, 0)
}

// reap waits for everything below, tells of the main process, and returns when nothing is left.
func reap(main int, report *json.Encoder) {
	for {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WALL, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			return
		}
		if pid == main {
			number := int(status)
			report.Encode(Report{Status: &number})
		}
	}
}

// fail tells the supervisor why there is no command; on success the kernel closes the pipe.
func fail(failure *wire.Error) {
	message, err := json.Marshal(Report{Error: failure})
	if err != nil {
		message = fmt.Appendf(nil, `{"error":{"code":"Internal","message":"%T"}}`, failure)
	}
	os.NewFile(ReportFD, "failure").Write(message)
	os.Exit(127)
}

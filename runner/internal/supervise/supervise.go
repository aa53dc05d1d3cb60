// Starts the command, reports how it ended, and reaps all its descendants.

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

// Spec is the command to run. PID 1 sends it on SpecFD.
type Spec struct {
	Argv []string   `json:"argv"`
	Env  [][]byte   `json:"env"` // bytes, because JSON strings cannot have invalid UTF-8
	Cwd  string     `json:"cwd"`
	User users.User `json:"user"`
}

// Report is a message of a supervisor to PID 1 on ReportFD. The first one has PID, unless the fork failed, the next one Error or
// Status.
type Report struct {
	PID    int         `json:"pid,omitempty"`
	Error  *wire.Error `json:"error,omitempty"`
	Status *int        `json:"status,omitempty"` // the command's wait status
}

// PID 1 passes these descriptors to a supervisor in addition to stdin (/dev/null), stdout and stderr (the output pipes). StdinFD is
// the stdin of the command.
const (
	SpecFD   = 3
	ReportFD = 4
	StdinFD  = 5
)

// Arguments is the command line with which PID 1 starts a supervisor.
var Arguments = []string{"runner", "phase"}

const becomeArgument = "become"

// Main runs the command `runner phase`.
func Main(args []string) error {
	if len(args) == 1 && args[0] == becomeArgument {
		return become()
	}
	report := os.NewFile(ReportFD, "report")
	for _, fd := range []int{SpecFD, ReportFD, StdinFD} {
		syscall.CloseOnExec(fd)
	}
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
		Files: []uintptr{StdinFD, 1, 2, SpecFD, failed.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return err
	}
	closeDescriptors(failed)
	report.Encode(Report{PID: pid})
	if message, _ := io.ReadAll(failure); len(message) > 0 { // empty if the command's execve succeeded, which closes the pipe
		report.Encode(json.RawMessage(message))
	}
	reap(pid, report)
	return nil
}

// closeDescriptors closes the supervisor's copies of descriptors that only the command may have. With these copies open, PID 1
// would get no EOF of the output, and would not notice that the command closed its stdin.
func closeDescriptors(failed *os.File) {
	failed.Close()
	syscall.Close(SpecFD)
	syscall.Close(StdinFD)
	syscall.Dup3(0, 1, 0)
	syscall.Dup3(0, 2, 0)
}

// reap waits for all children, reports the main process's status, and returns when no child is left.
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

// fail reports to the supervisor why the command did not start, and exits. On success the kernel closes the pipe at execve.
func fail(failure *wire.Error) {
	message, err := json.Marshal(Report{Error: failure})
	if err != nil {
		message = fmt.Appendf(nil, `{"error":{"code":"Internal","message":"%T"}}`, failure)
	}
	os.NewFile(ReportFD, "failure").Write(message)
	os.Exit(127)
}

// Runs a command from the request to the result.

package phase

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"multistep.dev/runner/internal/files"
	"multistep.dev/runner/internal/kernel"
	"multistep.dev/runner/internal/oom"
	"multistep.dev/runner/internal/reap"
	"multistep.dev/runner/internal/supervise"
	"multistep.dev/runner/internal/users"
	"multistep.dev/runner/internal/wire"
)

// These are the error codes of a phase. With Left, the phase ran, but some of its processes could not be killed. With all others,
// the phase could not start.
const (
	NoSuchUser    = "NoSuchUser"
	NoSuchCommand = "NoSuchCommand"
	Output        = "Output"
	Internal      = "Internal"
	Left          = "Left"
)

const maxTail = 60 << 10

// Host is the state that all phases share.
type Host struct {
	Reaper      *reap.Reaper
	Users       users.Database
	DefaultUser string
	Workdir     string
	Env         []string
	Captures    *files.Captures
	Null        *os.File // /dev/null, opened before a phase could replace it by a FIFO
	outputs     outputs
	named       named
}

// User returns a request's user. "" is the default user.
func (h *Host) User(name string) (users.User, error) {
	if name == "" {
		name = h.DefaultUser
	}
	return h.Users.Lookup(name)
}

// Run runs a phase and returns its result.
func (h *Host) Run(request wire.Start) wire.PhaseResult {
	meter, result := newMeter(), wire.PhaseResult{}
	if expired(request.TimeoutSeconds) {
		result.TimedOut = true
	} else {
		result.Error = h.run(request, &result)
	}
	result.Captures = h.Captures.Read(request.Captures)
	meter.stop(&result)
	return result
}

// meter measures a command's duration and counts the OOM kills in the container during that time.
type meter struct {
	started time.Time
	kills   *int64
}

func newMeter() meter { return meter{time.Now(), oom.Kills()} }

func (m meter) stop(result *wire.PhaseResult) {
	result.OOMKills, result.MemoryLimit = oom.Since(m.kills), oom.Limit()
	result.DurationSeconds = time.Since(m.started).Seconds()
}

func (h *Host) run(request wire.Start, result *wire.PhaseResult) *wire.Error {
	user, err := h.User(request.User)
	if err != nil {
		return wire.Errorf(NoSuchUser, "%v", err)
	}
	h.named.add(request.User)
	for _, path := range request.Remove {
		if err := files.Remove(path); err != nil {
			return wire.Errorf(Output, "cannot remove: %v", err)
		}
	}
	if request.MakeExecutable != "" {
		if err := files.MakeExecutable(request.MakeExecutable); err != nil {
			return wire.Errorf(NoSuchCommand, "cannot make it executable: %v", err)
		}
	}
	output, writeEnd, err := h.output(request, user)
	if err != nil {
		return wire.Errorf(Output, "%v", err)
	}
	h.outputs.add(request.ID, output)
	family, err := h.start(h.spec(request.Command, user), request.Stdin, writeEnd, writeEnd)
	syscall.Close(writeEnd)
	if err != nil {
		return wire.Errorf(Internal, "cannot start a supervisor: %v", err)
	}
	ctx, cancel := limited(context.Background(), request.TimeoutSeconds)
	defer cancel()
	failure := family.follow(ctx, request.KillAtEnd, result)
	output.drain()
	result.Tail, result.OutputBytes, result.OutputTruncated = output.end()
	if failure == nil && request.ExitCodeFile != "" {
		failure = writeExitCode(request.ExitCodeFile, user, *result)
	}
	return failure
}

func (h *Host) spec(command wire.Command, user users.User) supervise.Spec {
	cwd := command.Cwd
	if !filepath.IsAbs(cwd) {
		cwd = filepath.Join(h.Workdir, cwd)
	}
	return supervise.Spec{Argv: command.Argv, Env: Environment(h.Env, user, command.Env), Cwd: cwd, User: user}
}

func (h *Host) output(request wire.Start, user users.User) (*output, int, error) {
	tail := max(0, min(request.TailBytes, maxTail))
	if request.Output == nil {
		return newOutput(nil, 0, tail)
	}
	file, err := files.Create(request.Output.Path, user)
	if err != nil {
		return nil, -1, err
	}
	return newOutput(file, request.Output.MaxBytes, tail)
}

// writeExitCode writes the exit code to a file, as a shell reports it (128 + N for signal N). It writes no file if the code is 0 or
// the phase timed out.
func writeExitCode(path string, user users.User, result wire.PhaseResult) *wire.Error {
	status := 0
	switch {
	case result.ExitCode != nil:
		status = *result.ExitCode
	case result.Signal != nil && !result.TimedOut:
		status = 128 + *result.Signal
	}
	if status == 0 {
		return nil
	}
	if err := files.WriteExitCode(path, user, status); err != nil {
		return wire.Errorf(Output, "%v", err)
	}
	return nil
}

// start starts the supervisor of a phase, and sends it the command and the text of the command's stdin.
func (h *Host) start(spec supervise.Spec, stdin string, stdout, stderr int) (*family, error) {
	input, err := h.newInput(stdin)
	if err != nil {
		return nil, err
	}
	defer input.feed()
	toldRead, toldWrite, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer toldRead.Close()
	reportRead, reportWrite, err := os.Pipe()
	if err != nil {
		toldWrite.Close()
		return nil, err
	}
	defer reportWrite.Close()
	pid, gone, err := h.Reaper.Start(kernel.SelfExe, supervise.Arguments, &syscall.ProcAttr{
		Dir:   "/",
		Env:   []string{"GOMAXPROCS=1"},
		Files: []uintptr{h.Null.Fd(), uintptr(stdout), uintptr(stderr), toldRead.Fd(), reportWrite.Fd(), uintptr(input.read)},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return nil, errors.Join(err, toldWrite.Close(), reportRead.Close())
	}
	go func() { // in the background, because the spec may exceed the pipe's capacity
		defer toldWrite.Close()
		json.NewEncoder(toldWrite).Encode(spec)
	}()
	return &family{reaper: h.Reaper, supervisor: pid, gone: gone, reports: reportsOf(reportRead)}, nil
}

// reportsOf returns a channel of the supervisor's reports, which closes when the supervisor closes the pipe.
func reportsOf(pipe *os.File) <-chan supervise.Report {
	reports := make(chan supervise.Report, 4) // more than the number of reports, so that sending never blocks
	go func() {
		defer close(reports)
		defer pipe.Close()
		decoder := json.NewDecoder(pipe)
		for {
			var report supervise.Report
			if decoder.Decode(&report) != nil {
				return
			}
			reports <- report
		}
	}()
	return reports
}

package supervise

import (
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"syscall"

	"multistep.dev/runner/internal/kernel"
)

// start starts the command right away, as another program before it costs more than most commands do. 0 if that fails,
// for whatever reason: nothing has happened then.
func (s Spec) start() int {
	path := s.first()
	if path == "" {
		return 0
	}
	attributes := &syscall.SysProcAttr{Setsid: true}
	if !own(s.User) {
		attributes.Credential = &syscall.Credential{Uid: uint32(s.User.UID), Gid: uint32(s.User.GID), Groups: groups(s.User)}
	}
	pid, err := syscall.ForkExec(path, s.Argv, &syscall.ProcAttr{
		Dir: s.Cwd, Env: environment(s.Env), Files: []uintptr{0, 1, 2}, Sys: attributes,
	})
	if err != nil {
		return 0
	}
	return pid
}

// first is the file that the command's name means, as far as we can see; "" if only the user in the directory can tell.
func (s Spec) first() string {
	for _, path := range places(s.Argv[0], environment(s.Env)) {
		if !filepath.IsAbs(path) {
			return ""
		}
		switch _, err := os.Lstat(path); {
		case err == nil:
			return path
		case !errors.Is(err, syscall.ENOENT) && !errors.Is(err, syscall.ENOTDIR):
			return ""
		}
	}
	return ""
}

// startApart leaves it to a program of its own, which takes one step after the other and tells which one failed, and why.
func (s Spec) startApart() (pid int, failure io.Reader, err error) {
	specRead, specWrite, err := os.Pipe()
	if err != nil {
		return 0, nil, err
	}
	defer specRead.Close()
	failureRead, failureWrite, err := os.Pipe()
	if err != nil {
		return 0, nil, err
	}
	defer failureWrite.Close()
	pid, err = syscall.ForkExec(kernel.SelfExe, append(Arguments, becomeArgument), &syscall.ProcAttr{
		Env:   os.Environ(),
		Files: []uintptr{0, 1, 2, specRead.Fd(), failureWrite.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return 0, nil, err
	}
	go func() { // it may be more than a pipe takes at once
		defer specWrite.Close()
		json.NewEncoder(specWrite).Encode(s)
	}()
	return pid, failureRead, nil
}

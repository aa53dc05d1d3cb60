// Turns a process into the phase's command, with the command's user, directory and program.

package supervise

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"multistep.dev/runner/internal/kernel"
	"multistep.dev/runner/internal/wire"
)

// become turns this process, which has a session of its own, into the command. It switches to the user, changes to the directory,
// and executes the command. It runs as a separate program instead of in a fork's child, so that each failure gets its own error
// code, and the directory and PATH are resolved with the user's permissions.
func become() error {
	runtime.LockOSThread() // capabilities and filters belong to a thread
	var spec Spec
	if err := json.NewDecoder(os.NewFile(SpecFD, "spec")).Decode(&spec); err != nil {
		fail(wire.Errorf("Internal", "no command came: %v", err))
	}
	syscall.CloseOnExec(SpecFD)
	syscall.CloseOnExec(ReportFD)
	if err := kernel.DropSetpcap(); err != nil {
		fail(wire.Errorf("Permission", "cannot drop CAP_SETPCAP: %v", err))
	}
	if err := spec.User.Become(); err != nil {
		fail(wire.Errorf("Permission", "cannot become user %d:%d: %v", spec.User.UID, spec.User.GID, err))
	}
	kernel.ForbidLimits()
	if err := os.Chdir(spec.Cwd); err != nil {
		fail(wire.Errorf("BadCwd", "%v", err))
	}
	fail(execute(spec.Argv, environment(spec.Env)))
	return nil
}

func environment(variables [][]byte) []string {
	env := make([]string, len(variables))
	for i, variable := range variables {
		env[i] = string(variable)
	}
	return env
}

// execute tries each directory of PATH, as execvp does. It returns only on failure, with the reason.
func execute(argv, env []string) *wire.Error {
	name := argv[0]
	denied := ""
	for _, path := range places(name, env) {
		switch err := exec(path, argv, env); {
		case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
			denied = path
		case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ENOTDIR):
			if _, missing := os.Lstat(path); missing == nil {
				return wire.Errorf("NoSuchCommand", "%s exists, but its interpreter or loader does not", path)
			}
		case errors.Is(err, syscall.ENOEXEC):
			return wire.Errorf("NoSuchCommand", "%s is neither a program for this machine nor a script that /bin/sh can run", path)
		default:
			return wire.Errorf("Internal", "%s: %v", path, err)
		}
	}
	if denied != "" {
		return wire.Errorf("Permission", "%s: permission denied", denied)
	}
	return wire.Errorf("NoSuchCommand", "command %q does not exist", name)
}

// exec executes path. A script without a #! line is run with bash if the image has it (as in Harbor), otherwise with /bin/sh.
func exec(path string, argv, env []string) error {
	err := syscall.Exec(path, argv, env)
	if err == syscall.ENOEXEC {
		for _, shell := range []string{"/bin/bash", "/usr/bin/bash", "/bin/sh"} {
			syscall.Exec(shell, append([]string{shell, path}, argv[1:]...), env)
		}
	}
	return err
}

// places returns the paths to which a command's name can resolve.
func places(name string, env []string) []string {
	if strings.Contains(name, "/") {
		return []string{name}
	}
	var paths []string
	for _, variable := range env {
		if value, found := strings.CutPrefix(variable, "PATH="); found {
			for _, directory := range filepath.SplitList(value) {
				paths = append(paths, filepath.Join(directory, name))
			}
		}
	}
	return paths
}

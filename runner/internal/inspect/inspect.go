// Records the container's state before the first agent runs, and compares a later state with it.

package inspect

import (
	"context"
	"errors"
	"os"
	"path"
	"sync"
	"syscall"
	"time"

	"multistep.dev/runner/internal/kernel"
	"multistep.dev/runner/internal/wire"
)

const (
	maxProcesses = 50
)

// timeout is the maximum duration of an inspection. Only tests change it.
var timeout = 20 * time.Second

// These are the kinds of findings.
const (
	SystemFileChanged    = "SystemFileChanged"    // a program, library or module was changed
	ProgramShadowed      = "ProgramShadowed"      // a new file is found before a program, library or module of the same name
	StartupHook          = "StartupHook"          // code that other programs run when they start
	TestHook             = "TestHook"             // configuration of pytest above the verifier's tests
	WorkdirHook          = "WorkdirHook"          // configuration of pytest in the agent's working directory
	VerifierFilesPlanted = "VerifierFilesPlanted" // files in the verifier's directories before the verification
)

// Scope has the inputs of an inspection other than the files.
type Scope struct {
	Env         map[string]string // environment variables of the verification, some of which name files to inspect
	Directories []string          // directories of the verifier
	Workdir     string
	Supervisors func() map[int]bool // PIDs of the runner's own processes
}

// Inspector compares the container with its state before the first agent ran.
type Inspector struct {
	files tree

	mu       sync.Mutex
	baseline *baseline
	uploaded map[string]int64 // ctimes of hooks that the operator uploaded, by path
}

// baseline is the state before the first agent ran.
type baseline struct {
	time      int64             // end of the baseline, in nanoseconds since the Unix epoch. Later changes have later ctimes
	programs  map[string]string // final path of each file in a directory of programs
	libraries map[string]string // final path of each library that the dynamic loader knows, by name
	cached    bool              // the loader has a cache of libraries
	modules   pathSet           // files in Python's library directories
	names     map[string]bool   // names of Python's top-level modules
	planted   pathSet           // files in the verifier's directories
	processes map[process]bool
}

type process struct {
	pid   int
	start uint64
}

// New returns an Inspector of the container whose root directory is root ("" in a container).
func New(root string) *Inspector {
	return &Inspector{files: tree{root, context.Background()}, uploaded: map[string]int64{}}
}

// until returns an Inspector with the same state that reads no file after the end of ctx.
func (i *Inspector) until(ctx context.Context) *Inspector {
	return &Inspector{files: tree{i.files.root, ctx}, baseline: i.baseline, uploaded: i.uploaded}
}

// Baseline records the container's programs, libraries, Python modules, verifier files and processes. It does nothing if a baseline
// already exists.
func (i *Inspector) Baseline(scope Scope) (wire.BaselineResult, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	started := time.Now()
	if i.baseline != nil {
		return wire.BaselineResult{}, nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	found, limited := &baseline{programs: map[string]string{}, processes: map[process]bool{}}, i.until(ctx)
	for _, directory := range limited.programDirectories(scope.Env) {
		for _, name := range limited.files.names(directory) {
			file := path.Join(directory, name)
			if final, err := limited.files.resolve(file); err == nil {
				found.programs[file] = final
			}
		}
	}
	found.libraries = limited.loadable()
	_, err := limited.files.lstat(cachePath)
	found.cached = err == nil
	found.names = map[string]bool{}
	err = limited.walkModules(scope.Env, func(module moduleFile) {
		found.modules.add(module.path)
		if module.top {
			found.names[module.name] = true
		}
	}, func(string, string, *syscall.Stat_t) {})
	if err != nil {
		return wire.BaselineResult{}, err
	}
	for _, directory := range scope.Directories {
		limited.files.walk(directory, maxPlanted, func(file string, _ *syscall.Stat_t) { found.planted.add(file) })
	}
	found.modules.finish()
	found.planted.finish()
	for _, each := range environment(scope.Supervisors) {
		found.processes[process{each.PID, each.Start}] = true
	}
	found.time = separate()
	i.baseline = found
	count := len(found.programs) + len(found.libraries) + len(found.modules.keys)
	return wire.BaselineResult{Files: count, Seconds: time.Since(started).Seconds()}, nil
}

// ErrNoBaseline means that the state before the agent ran is unknown.
var ErrNoBaseline = errors.New("no baseline was taken before the agent ran")

// Inspect returns the changes since the baseline that could affect a verification.
func (i *Inspector) Inspect(scope Scope) (wire.InspectResult, error) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.baseline == nil {
		return wire.InspectResult{}, ErrNoBaseline
	}
	started := time.Now()
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	search := &search{Inspector: i.until(ctx), scope: scope, found: map[string]string{}}
	result := wire.InspectResult{Findings: search.run(), Processes: []string{}}
	result.Incomplete = search.incomplete
	for _, each := range environment(scope.Supervisors) {
		if i.baseline.processes[process{each.PID, each.Start}] {
			continue
		}
		if result.ProcessCount++; len(result.Processes) < maxProcesses {
			result.Processes = append(result.Processes, kernel.Name(each.PID))
		}
	}
	result.Seconds = time.Since(started).Seconds()
	return result, nil
}

// Uploaded marks the pytestFiles in a directory that changed since the given time (in nanoseconds since the Unix epoch) as uploaded
// by the operator. Inspect does not report them.
func (i *Inspector) Uploaded(directory string, since int64) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, name := range pytestFiles {
		file := path.Join(directory, name)
		if stat, err := i.files.lstat(file); err == nil && stat.Ctim.Nano() >= since {
			i.uploaded[file] = stat.Ctim.Nano()
		}
	}
}

// separate returns a time that is after the ctimes of all earlier changes and before those of all later changes. Kernels take
// ctimes from a clock that advances in ticks. Newer kernels also take them from the exact clock, which is ahead of the clock with
// ticks.
func separate() int64 {
	now := time.Now().UnixNano()
	for kernel.CoarseTime() <= now {
		time.Sleep(time.Millisecond)
	}
	return now
}

// environment returns the living processes of the container, except the runner's own and those from outside of the container (exec
// sessions).
func environment(supervisors func() map[int]bool) []kernel.Process {
	all, _ := kernel.Processes()
	own, found := supervisors(), all[:0]
	for _, each := range all {
		if each.PPID != 0 && each.PID != os.Getpid() && !own[each.PID] && each.Alive() {
			found = append(found, each)
		}
	}
	return found
}

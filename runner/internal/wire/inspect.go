package wire

import "fmt"

// Verification describes a verification, in the requests baseline and inspect. Directories are the verifier's.
type Verification struct {
	User        string            `json:"user"`
	Env         map[string]string `json:"env"` // only of variables that name programs or files; over PID 1's environment
	Directories []string          `json:"directories"`
}

func (v Verification) check() error {
	for _, directory := range v.Directories {
		if directory == "" || CheckPaths([]string{directory}) != nil {
			return fmt.Errorf("no directory of a verifier: %.200q", directory)
		}
	}
	return nil
}

// Baseline is the request baseline: it notes the state of the container before the first agent runs.
type Baseline struct {
	Op
	Verification
}

// Check rejects relative paths.
func (b Baseline) Check() error { return b.check() }

// BaselineResult is the result of a baseline. Files is the number of files that it knows.
type BaselineResult struct {
	Files   int     `json:"files"`
	Seconds float64 `json:"seconds"`
	Error   *Error  `json:"error"`
}

// Inspect is the request inspect: it finds traces of tampering since the baseline.
type Inspect struct {
	Op
	Verification
}

// Check rejects relative paths.
func (i Inspect) Check() error { return i.check() }

// Finding is what an inspection found of one kind: the number of files, and the paths of the first.
type Finding struct {
	Kind  string   `json:"kind"`
	Count int      `json:"count"`
	Paths []string `json:"paths"`
}

// InspectResult is the result of an inspection. Incomplete means that a limit was exceeded: there may be more.
type InspectResult struct {
	Findings     []Finding `json:"findings"`
	Processes    []string  `json:"processes"`    // names, as the processes chose them
	ProcessCount int       `json:"processCount"` // living processes that did not exist at the baseline
	Incomplete   bool      `json:"incomplete"`
	Seconds      float64   `json:"seconds"`
	Error        *Error    `json:"error"`
}

// Defines the requests that look for traces of tampering.

package wire

import "fmt"

// Verification describes the verification that a baseline or inspect request concerns. Directories are those of the verifier.
type Verification struct {
	User        string            `json:"user"`
	Env         map[string]string `json:"env"` // only variables that name programs or files. They override PID 1's variables
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

// Baseline is the `baseline` request, which records the state of the container before the first agent runs.
type Baseline struct {
	Op
	Verification
}

// Check rejects relative paths.
func (b Baseline) Check() error { return b.check() }

// BaselineResult is the result of a baseline. Files is the number of files that it recorded.
type BaselineResult struct {
	Files   int     `json:"files"`
	Seconds float64 `json:"seconds"`
	Error   *Error  `json:"error"`
}

// Inspect is the `inspect` request, which finds traces of tampering since the baseline.
type Inspect struct {
	Op
	Verification
}

// Check rejects relative paths.
func (i Inspect) Check() error { return i.check() }

// Finding has the number of files of one kind that an inspection found, and the first of their paths.
type Finding struct {
	Kind  string   `json:"kind"`
	Count int      `json:"count"`
	Paths []string `json:"paths"`
}

// InspectResult is the result of an inspection. Incomplete means that a limit was exceeded, so that there may be more findings.
type InspectResult struct {
	Findings     []Finding `json:"findings"`
	Processes    []string  `json:"processes"`    // names that the processes chose themselves
	ProcessCount int       `json:"processCount"` // number of living processes that did not exist at the baseline
	Incomplete   bool      `json:"incomplete"`
	Seconds      float64   `json:"seconds"`
	Error        *Error    `json:"error"`
}

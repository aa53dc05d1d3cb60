// Defines the requests that store and restore files, and their limits.

package wire

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math"
)

// These are the error codes of checkpoint, commit and restore.
const (
	CodeNoBase     = "NoBase"     // no list of the image's files exists
	CodeRunning    = "Running"    // processes could not be stopped
	CodeTooLarge   = "TooLarge"   // a limit of files, bytes or depth was exceeded
	CodeTooSlow    = "TooSlow"    // maxSeconds were exceeded
	CodeUnreadable = "Unreadable" // PID 1 cannot read a changed file
	CodeUnusual    = "Unusual"    // files of a kind that only a hostile process creates
	CodeChanged    = "Changed"    // a file was replaced while it was packed
	CodeDamaged    = "Damaged"    // the stream of a restore does not match its manifest
	CodeRestore    = "Restore"    // the container rejects a file to restore
)

// CheckpointLimits limits entries, unpacked and compressed bytes, and seconds of a checkpoint, or of each increment of a restore.
type CheckpointLimits struct {
	MaxFiles       int     `json:"maxFiles"`
	MaxBytes       int64   `json:"maxBytes"`
	MaxPackedBytes int64   `json:"maxPackedBytes"`
	MaxSeconds     float64 `json:"maxSeconds"`
}

// defaultLimits are the default limits of a checkpoint. highestLimits are the highest limits of a request, and the default limits
// of a restore, so that a restore accepts every checkpoint.
var (
	defaultLimits = CheckpointLimits{MaxFiles: 500_000, MaxBytes: 8 << 30, MaxPackedBytes: 4 << 30, MaxSeconds: 300}
	highestLimits = CheckpointLimits{MaxFiles: 10_000_000, MaxBytes: math.MaxInt64, MaxPackedBytes: math.MaxInt64, MaxSeconds: 3600}
)

func (l CheckpointLimits) check() error {
	most := highestLimits
	if l.MaxFiles < 1 || l.MaxFiles > most.MaxFiles || l.MaxBytes < 1 || l.MaxPackedBytes < 1 || !(l.MaxSeconds > 0 && l.MaxSeconds <= most.MaxSeconds) {
		return fmt.Errorf("maxFiles %d (1 to %d), maxBytes %d, maxPackedBytes %d (from 1), maxSeconds %g (to %g)",
			l.MaxFiles, most.MaxFiles, l.MaxBytes, l.MaxPackedBytes, l.MaxSeconds, most.MaxSeconds)
	}
	return nil
}

// Checkpoint is the `checkpoint` request, which returns the files that changed since the last commit or, if Full is set, since the
// image.
type Checkpoint struct {
	Op
	CheckpointLimits
	Full    bool     `json:"full"`
	Exclude []string `json:"exclude"`
}

// NewCheckpoint returns a request with the defaults of optional fields.
func NewCheckpoint() Checkpoint { return Checkpoint{CheckpointLimits: defaultLimits} }

// Check rejects invalid limits.
func (c Checkpoint) Check() error { return c.check() }

// Process is a process of the environment that survived the step.
type Process struct {
	PID  int    `json:"pid"`
	Name string `json:"name"` // name in the kernel (comm), which the process can change
}

// Commit is the `commit` request. The operator has stored the increment with this manifest, which becomes the base of the next one.
type Commit struct {
	Op
	Manifest string `json:"manifest"`
}

// Check rejects a manifest that is not a digest.
func (c Commit) Check() error { return checkDigest(c.Manifest) }

// CommitResult is the result of a commit.
type CommitResult struct {
	Manifest string `json:"manifest"`
}

// Increment names one increment of a restore by its manifest's digest.
type Increment struct {
	Manifest string `json:"manifest"`
}

// Restore is the `restore` request, which applies increments in order. With Paths, it restores only these directories.
type Restore struct {
	Op
	CheckpointLimits
	Increments []Increment `json:"increments"`
	Paths      []string    `json:"paths"`
}

// NewRestore returns a request with the defaults of optional fields.
func NewRestore() Restore { return Restore{CheckpointLimits: highestLimits} }

const maxIncrements = 1000

// Check rejects a request that has no increments, too many increments, an invalid digest, an invalid path or invalid limits.
func (r Restore) Check() error {
	if len(r.Increments) == 0 || len(r.Increments) > maxIncrements {
		return fmt.Errorf("%d increments (1 to %d)", len(r.Increments), maxIncrements)
	}
	for _, increment := range r.Increments {
		if err := checkDigest(increment.Manifest); err != nil {
			return err
		}
	}
	for _, path := range r.Paths {
		if path == "" || path == "/" || CheckPaths([]string{path}) != nil {
			return fmt.Errorf("no directory to restore: %.200q", path)
		}
	}
	return r.check()
}

// RestoreResult is the result of a restore. Bytes is the size of the restored contents. Skipped is the number of entries that were
// not restored, such as mounts and paths that the request does not list.
type RestoreResult struct {
	Manifest string  `json:"manifest"`
	Entries  int     `json:"entries"`
	Deleted  int     `json:"deleted"`
	Skipped  int     `json:"skipped"`
	Bytes    int64   `json:"bytes"`
	Seconds  float64 `json:"seconds"`
}

func checkDigest(digest string) error {
	if raw, err := hex.DecodeString(digest); err != nil || len(raw) != 32 {
		return errors.New("a manifest's digest has 64 hex digits")
	}
	return nil
}

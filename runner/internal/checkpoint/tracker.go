// Keeps the lists with which increments are compared, and lets only one checkpoint or restore run at a time.

package checkpoint

import (
	"context"
	"errors"
	"io"
	"runtime/debug"
	"sync"
	"syscall"
	"time"

	"multistep.dev/runner/internal/manifest"
	"multistep.dev/runner/internal/mounts"
	"multistep.dev/runner/internal/wire"
)

const (
	// imageTimeout is the timeout for listing the image's files. Phases wait for the list, and callers wait for it at most a minute.
	imageTimeout  = 50 * time.Second
	maxImageFiles = 4_000_000
	busyTimeout   = 20 * time.Second // timeout for waiting until another checkpoint or restore is finished
)

// Tracker compares the files below a directory with earlier lists of them.
type Tracker struct {
	root    string
	own     []string        // paths that belong to the runner
	atStart map[string]bool // paths of mounts and of the runner when PID 1 started
	listed  chan struct{}
	busy    chan struct{} // has an element during a checkpoint or restore

	mu      sync.Mutex
	holder  context.Context // context of the checkpoint or restore that last filled busy
	image   *List
	failure error // why the files of the image could not be listed, if image is nil
	base    version
	pending version // the last packed increment, until its commit
}

// version is a list of files, and the digest of the manifest to which the list belongs.
type version struct {
	digest string
	list   *List
}

// Track starts to list the files below root in the background. own has the runner's directories, which no list contains.
func Track(root string, own []string) *Tracker {
	t := &Tracker{root: root, own: own, listed: make(chan struct{}), busy: make(chan struct{}, 1)}
	go func() {
		defer close(t.listed)
		ctx, cancel := context.WithTimeout(context.Background(), imageTimeout)
		defer cancel()
		if t.atStart, t.failure = mounts.Foreign(own); t.failure == nil {
			t.image, t.failure = t.list(ctx)
		}
		t.base.list = t.image
	}()
	return t
}

// Untracked returns a Tracker without lists, which only makes restores wait for each other.
func Untracked() *Tracker {
	t := &Tracker{listed: make(chan struct{}), busy: make(chan struct{}, 1), failure: errors.New("the runner was started without --checkpoints")}
	close(t.listed)
	return t
}

// Wait returns when the image's files are listed. No file may change before, because all checkpoints would miss the deletion of a
// file that is deleted before it is listed.
func (t *Tracker) Wait() {
	<-t.listed
}

// Acquire waits until no other checkpoint or restore is in progress, and makes later ones wait until the caller calls release. It
// returns a Conflict if another one is still in progress after busyTimeout. It waits longer if the other one was cancelled (its
// context is done), and so is about to stop.
func (t *Tracker) Acquire(ctx context.Context) (release func(), err error) {
	select {
	case <-t.listed:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	for waited := time.After(busyTimeout); ; waited = time.After(time.Second) {
		select {
		case t.busy <- struct{}{}:
			t.mu.Lock()
			defer t.mu.Unlock()
			t.holder = ctx
			return func() { <-t.busy }, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-waited:
			if !t.cancelled() {
				return nil, wire.Errorf(wire.CodeConflict, "another checkpoint or restore is in progress")
			}
		}
	}
}

// cancelled returns whether the checkpoint or restore in progress was cancelled.
func (t *Tracker) cancelled() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.holder != nil && t.holder.Err() != nil
}

// Listed returns an error if the files of the image are unknown.
func (t *Tracker) Listed() *wire.Error {
	if t.Wait(); t.failure != nil {
		return wire.Errorf(wire.CodeNoBase, "the files of the image are not listed: %v", t.failure)
	}
	return nil
}

// Packed is an increment that Pack wrote.
type Packed struct {
	Totals
	Manifest string `json:"manifest"`
	Previous string `json:"previous"`
}

// Pack writes the increment since the last commit or, if request.Full is set, since the image. The compressed tar stream goes to
// out, the manifest's lines to lines. Pack skips the paths that the request excludes.
func (t *Tracker) Pack(ctx context.Context, request wire.Checkpoint, out, lines io.Writer) (Packed, error) {
	t.mu.Lock()
	base := t.base
	if request.Full {
		base = version{list: t.image}
	}
	t.pending = version{} // frees memory for the next list
	t.mu.Unlock()
	writer, err := manifest.NewWriter(lines, manifest.Header{Version: manifest.Version, Previous: base.digest})
	if err != nil {
		return Packed{}, err
	}
	borders, err := t.borders(request.Exclude)
	if err != nil {
		return Packed{}, err
	}
	limits := Limits{Files: request.MaxFiles, Bytes: request.MaxBytes, PackedBytes: request.MaxPackedBytes}
	list, totals, err := pack(ctx, t.root, borders, base.list, out, writer, limits)
	if err != nil {
		return Packed{}, err
	}
	t.mu.Lock()
	t.pending = version{writer.SHA256(), list}
	t.mu.Unlock()
	return Packed{totals, writer.SHA256(), base.digest}, nil
}

// Commit makes the increment with this manifest the base of the next one. It does nothing if this increment already is the base. It
// returns NotFound if the increment is neither the base nor the last packed one.
func (t *Tracker) Commit(digest string) *wire.Error {
	t.mu.Lock()
	defer t.mu.Unlock()
	switch digest {
	case t.base.digest:
		return nil
	case t.pending.digest:
		t.base, t.pending = t.pending, version{}
		return nil
	}
	return wire.Errorf(wire.CodeNotFound, "%s is not the manifest of the last checkpoint", digest)
}

// Restored lists the files again after the increment with this manifest was restored, and makes the list the base of the next
// increment.
func (t *Tracker) Restored(ctx context.Context, digest string) error {
	if t.Listed() != nil {
		return nil
	}
	time.Sleep(racy) // otherwise the restored files would count as changed at the next checkpoint
	list, err := t.list(ctx)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.base, t.pending = version{digest, list}, version{}
	return nil
}

func (t *Tracker) list(ctx context.Context) (*List, error) {
	defer debug.FreeOSMemory() // frees memory at once, because it counts towards the trial's limit
	borders, err := t.borders(nil)
	if err != nil {
		return nil, err
	}
	lister := &lister{}
	walk := walker{ctx: ctx, root: t.root, skip: borders.skips, visit: lister, maxDir: maxImageFiles}
	return &lister.list, walk.walk()
}

// lister is a visitor that only lists files.
type lister struct {
	list List
}

func (l *lister) Enter(dir *level) error { return l.list.add(dir.path, stateOf(&dir.stat, time.Now())) }

func (l *lister) File(_ *level, path []byte, _ string, stat *syscall.Stat_t) error {
	if stat.Mode&syscall.S_IFMT == syscall.S_IFSOCK {
		return nil
	}
	return l.list.add(path, stateOf(stat, time.Now()))
}

func (l *lister) Leave(*level) error { return nil }

func (l *lister) Skipped(_ *level, path []byte, stat *syscall.Stat_t) error {
	if stat == nil {
		return nil
	}
	return l.list.add(path, stateOf(stat, time.Now()))
}

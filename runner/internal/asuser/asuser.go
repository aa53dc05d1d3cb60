// The side of PID 1: starts a child as the user, and controls its upload or download.

package asuser

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"

	"multistep.dev/runner/internal/frames"
	"multistep.dev/runner/internal/kernel"
	"multistep.dev/runner/internal/reap"
	"multistep.dev/runner/internal/users"
	"multistep.dev/runner/internal/wire"
)

// cancelGracePeriod is how long a child may continue after its transfer was cancelled, so that it can remove the staging directory.
var cancelGracePeriod = 5 * time.Second

// job is the request to a child process. It is an upload if it has a target, otherwise a download.
type job struct {
	User    users.User    `json:"user"`
	Target  string        `json:"target,omitempty"`
	Sources []wire.Source `json:"sources,omitempty"`
}

// reply is the child's response to the job, to the body of an upload, and to the request to merge an upload.
type reply struct {
	Error   *wire.Error       `json:"error,omitempty"`
	Sources []wire.SourceType `json:"sources,omitempty"`
}

// child is a running process `runner transfer`.
type child struct {
	user     users.User
	requests *os.File
	replies  *os.File
	frames   *frames.Reader // reads replies
	gone     <-chan syscall.WaitStatus
	kill     func()
	stop     func() bool // unregisters the kill that follows a cancellation of ctx
}

// start starts a child, and sends it the job. If ctx is cancelled, the child is killed after cancelGracePeriod.
func start(ctx context.Context, reaper *reap.Reaper, work job) (*child, reply, error) {
	c, err := fork(reaper)
	if err != nil {
		return nil, reply{}, fmt.Errorf("cannot start the transfer's process: %w", err)
	}
	c.user = work.User
	c.stop = context.AfterFunc(ctx, func() { time.AfterFunc(cancelGracePeriod, c.kill) })
	first, err := c.ask(work)
	if err != nil {
		c.end(cancelGracePeriod)
		return nil, reply{}, err
	}
	return c, first, nil
}

func fork(reaper *reap.Reaper) (*child, error) {
	input, requests, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer input.Close()
	replies, output, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, requests.Close())
	}
	defer output.Close()
	pid, gone, err := reaper.Start(kernel.SelfExe, Arguments, &syscall.ProcAttr{
		Dir:   "/",
		Env:   []string{"GOMAXPROCS=1"},
		Files: []uintptr{input.Fd(), output.Fd(), uintptr(syscall.Stderr)},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return nil, errors.Join(err, requests.Close(), replies.Close())
	}
	return &child{
		requests: requests, replies: replies, frames: frames.NewReader(replies), gone: gone, kill: func() { reaper.Kill(pid, gone) },
	}, nil
}

// ask sends a request and returns the reply, or the error that it contains.
func (c *child) ask(request any) (reply, error) {
	if err := frames.WriteJSON(c.requests, frames.JSON, request); err != nil {
		return reply{}, c.lost(err)
	}
	return c.reply()
}

func (c *child) reply() (reply, error) {
	kind, _, err := c.frames.Next()
	if err == nil && kind != frames.JSON {
		err = fmt.Errorf("it sent frame %c", kind)
	}
	if err != nil {
		return reply{}, c.lost(err)
	}
	payload, err := c.frames.Payload()
	if err != nil {
		return reply{}, c.lost(err)
	}
	var got reply
	if err := json.Unmarshal(payload, &got); err != nil {
		return reply{}, c.lost(err)
	}
	if got.Error != nil {
		return reply{}, got.Error
	}
	return got, nil
}

// lost returns the error of a transfer whose child does not respond. It does not wrap err, because callers would mistake err for an
// error of their own connection.
func (c *child) lost(err error) error {
	return fmt.Errorf("the transfer's process of user %s ended, or was killed: %v", c.user, err)
}

// end ends the child, and kills it if it takes longer than limit.
func (c *child) end(limit time.Duration) {
	c.stop()
	c.requests.Close()
	select {
	case <-c.gone:
	case <-time.After(limit):
		c.kill()
		<-c.gone
	}
	c.replies.Close()
}

// Upload is like files.Upload, but with the permissions of its user.
type Upload struct{ child *child }

// NewUpload starts a child process that uploads into target as the user. The caller must close the Upload.
func NewUpload(ctx context.Context, reaper *reap.Reaper, target string, user users.User) (*Upload, error) {
	child, _, err := start(ctx, reaper, job{User: user, Target: target})
	if err != nil {
		return nil, err
	}
	return &Upload{child}, nil
}

// Unpack unpacks a tar stream into the staging directory.
func (u *Upload) Unpack(stream io.Reader) error {
	body := frames.NewBodyWriter(u.child.requests)
	if _, err := io.Copy(body, stream); err != nil {
		return u.child.lost(err)
	}
	if err := body.Finish(frames.Trailer{}); err != nil {
		return u.child.lost(err)
	}
	_, err := u.child.reply()
	return err
}

// Merge moves all files from the staging directory into the target.
func (u *Upload) Merge() error {
	_, err := u.child.ask(struct{}{})
	return err
}

// Close ends the child, which deletes the staging directory.
func (u *Upload) Close() error {
	u.child.end(cancelGracePeriod)
	return nil
}

// Download is like files.Download, but with the permissions of its user.
type Download struct {
	child *child
	types []wire.SourceType
}

// OpenDownload starts a child process that opens the sources as the user. The caller must close the Download.
func OpenDownload(ctx context.Context, reaper *reap.Reaper, sources []wire.Source, user users.User) (*Download, error) {
	child, first, err := start(ctx, reaper, job{User: user, Sources: sources})
	if err != nil {
		return nil, err
	}
	return &Download{child, first.Sources}, nil
}

// Types returns the type of each source.
func (d *Download) Types() []wire.SourceType { return d.types }

// Send writes the sources as a tar stream. The trailer lists unreadable and changed files.
func (d *Download) Send(stream io.Writer) (frames.Trailer, error) {
	body := frames.NewBody(d.child.frames)
	_, err := io.Copy(stream, source{body, d.child})
	if err != nil {
		return frames.Trailer{}, err
	}
	return body.Trailer(), nil
}

// source reads the body that a child sends, which is the tar stream of a download.
type source struct {
	body  *frames.Body
	child *child
}

func (s source) Read(p []byte) (int, error) {
	n, err := s.body.Read(p)
	if err != nil && err != io.EOF {
		err = s.child.lost(err)
	}
	return n, err
}

// Close kills the child, which has nothing to clean up.
func (d *Download) Close() {
	d.child.kill()
	d.child.end(cancelGracePeriod)
}

// Serves a guest, and decides as which users it may act.

package session

import (
	"context"
	"io"
	"sync"
	"time"

	"multistep.dev/runner/internal/asuser"
	"multistep.dev/runner/internal/files"
	"multistep.dev/runner/internal/frames"
	"multistep.dev/runner/internal/guests"
	"multistep.dev/runner/internal/phase"
	"multistep.dev/runner/internal/users"
	"multistep.dev/runner/internal/wire"
)

// guestBuffer is the size in bytes of a guest's read buffer. It is small, because many guests may connect at once.
const guestBuffer = 4 << 10

// guest is the session of a guest, which is a process of another container that the operator admitted (package guests).
type guest struct {
	Session
	conn      *guests.Connection
	admission *guests.Admission
}

// ServeGuest handles a guest's session until it ends. It sends errors to the guest, but does not log them, because there can be
// very many rejected callers.
func (r *Runner) ServeGuest(conn *guests.Connection) {
	defer conn.Leave()
	reader := frames.NewReaderSize(conn, guestBuffer)
	g := guest{Session: Session{Runner: r, frames: reader, stream: conn}, conn: conn}
	admission, err := conn.Handshake(reader)
	if err != nil {
		conn.SetDeadline(time.Now().Add(time.Second))
		g.refuse(wire.Errorf(wire.CodeRefused, "%v", err))
		return
	}
	g.admission, g.handle = admission, g.dispatch
	stop := context.AfterFunc(admission.Context(), func() { conn.Close() })
	defer stop()
	g.serve()
}

func (g *guest) dispatch(op wire.Op, payload []byte) error {
	if op.ID != "" {
		return g.refuse(wire.Errorf(wire.CodeProtocol, "a guest's request has no id: no record is kept"))
	}
	switch op.Op {
	case "exec":
		return decoded(&g.Session, payload, wire.Exec{}, g.exec)
	case "upload":
		return decoded(&g.Session, payload, wire.Upload{}, g.upload)
	case "download":
		return decoded(&g.Session, payload, wire.Download{}, g.download)
	}
	return g.refuse(wire.Errorf(wire.CodeProtocol, "unknown op %q", wire.Cut(op.Op, 100)))
}

// user returns the user of a request. "" is the admitted user. It reads the user database for each request, because a guest's
// command may add users to it. It returns refusal if the guest may not act as this user, and unknown if the user does not exist.
func (g *guest) user(name string) (user users.User, refusal *wire.Error, unknown error) {
	admitted, err := g.Host.User(g.admission.User)
	if name == "" {
		return admitted, nil, err
	}
	asked, unknown := g.Host.User(name)
	if g.admission.Root {
		return asked, nil, unknown
	}
	if err != nil || unknown != nil || asked.UID != admitted.UID || asked.GID != admitted.GID {
		return user, wire.Errorf(wire.CodeRefused, "this guest may act as user %q only, not as %.200q", g.admission.User, name), nil
	}
	return admitted, nil, nil // instead of the requested user, who has the same IDs but may have more groups
}

func (g *guest) exec(request wire.Exec) error {
	user, refusal, unknown := g.user(request.User)
	if refusal != nil {
		return g.refuse(refusal)
	}
	if unknown != nil {
		return g.answerResult(executed{PhaseResult: wire.PhaseResult{Error: wire.Errorf(phase.NoSuchUser, "%v", unknown)}})
	}
	ctx, cancel := context.WithCancel(g.admission.Context())
	defer cancel()
	stop, err := watch(g.conn, cancel)
	if err != nil {
		return err
	}
	sender := outputSender{to: g.stream, broken: cancel}
	result := g.Host.Exec(ctx, request, user, sender.send, &g.admission.Background)
	stop()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return g.answerResult(executed{PhaseResult: result})
}

// executed is a command's result without the field captures, because its own field Captures hides the embedded one.
type executed struct {
	wire.PhaseResult
	Captures *struct{} `json:"captures,omitempty"`
}

func (g *guest) answerResult(result any) error {
	return g.answer(struct {
		OK     bool `json:"ok"`
		Result any  `json:"result"`
	}{answerOK, result})
}

// outputSender sends a command's output to the guest as D frames. The first byte of a payload is the stream, phase.Stdout or
// phase.Stderr.
type outputSender struct {
	mu     sync.Mutex
	to     io.Writer
	buffer []byte
	failed bool
	broken func()
}

// send blocks while the guest does not read, so the command blocks, too. After an error, send discards the output.
func (o *outputSender) send(stream byte, data []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.failed {
		return
	}
	o.buffer = append(append(o.buffer[:0], stream), data...)
	if err := frames.Write(o.to, frames.Data, o.buffer); err != nil {
		o.failed = true
		o.broken()
	}
}

func (g *guest) upload(request wire.Upload) error {
	owner, refusal, unknown := g.user(request.User)
	if refusal != nil {
		return g.refuse(refusal)
	}
	if unknown != nil {
		return g.refuse(wire.Errorf(wire.CodeUpload, "%v", unknown))
	}
	target, refusal := g.target(request)
	if refusal != nil {
		return g.refuse(refusal)
	}
	upload, err := g.newUpload(target, owner)
	if err != nil {
		return g.refuse(wire.Failure(wire.CodeUpload, err))
	}
	var result any
	body, refusal, err := g.receive(upload)
	if err == nil {
		err = g.admission.Context().Err()
	}
	if err == nil && refusal == nil {
		result, refusal = merge(upload, body)
	}
	upload.Close()
	switch {
	case err != nil:
		return err
	case refusal != nil:
		return g.refuse(refusal)
	}
	return g.answerResult(result)
}

// newUpload prepares an upload with the permissions of the user or, if the guest has root, of PID 1 (as with `docker cp`).
func (g *guest) newUpload(target string, user users.User) (uploading, error) {
	if g.admission.Root {
		return files.NewUpload(target, user)
	}
	return asuser.NewUpload(g.admission.Context(), g.Host.Reaper, target, user)
}

// download sends files that the admitted user or, if the guest has root, PID 1 can read.
func (g *guest) download(request wire.Download) error {
	if g.admission.Root {
		return g.Session.download(request)
	}
	user, _, unknown := g.user("")
	if unknown != nil {
		return g.refuse(wire.Errorf(wire.CodeRefused, "%v", unknown))
	}
	download, err := asuser.OpenDownload(g.admission.Context(), g.Host.Reaper, request.Sources, user)
	if err != nil {
		return g.refuse(wire.Failure(wire.CodeRefused, err))
	}
	return g.sendDownload(download)
}

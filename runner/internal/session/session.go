// Reads requests, responds to them, and handles those about phases, records and admissions.

package session

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"slices"
	"time"

	"multistep.dev/runner/internal/checkpoint"
	"multistep.dev/runner/internal/frames"
	"multistep.dev/runner/internal/guests"
	"multistep.dev/runner/internal/healthcheck"
	"multistep.dev/runner/internal/inspect"
	"multistep.dev/runner/internal/phase"
	"multistep.dev/runner/internal/records"
	"multistep.dev/runner/internal/sealed"
	"multistep.dev/runner/internal/wire"
)

const (
	readTimeout  = 15 * time.Minute // read timeout, after which the caller counts as disconnected
	writeTimeout = 5 * time.Minute  // timeout if the caller reads nothing
	progress     = 32 << 10         // bytes in one part of a write. Each part has its own timeout
	maxWait      = time.Hour
	answerOK     = true
)

// Runner is the state that all sessions share.
type Runner struct {
	Host       *phase.Host
	Guests     *guests.Admissions
	Store      *records.Store
	Tracker    *checkpoint.Tracker
	Restores   Restores
	Inspector  *inspect.Inspector
	Key        sealed.Key
	Version    string
	Instance   string
	PodUID     string
	RuntimeDir string
	StartedAt  time.Time
	Own        []string // paths that belong to the runner, and to no checkpoint
	Protocols  []int
	// RootPrograms are the programs with which a user may become root, as they were before the first phase.
	RootPrograms []string
}

// Session is one caller's connection.
type Session struct {
	*Runner
	conn     *timeoutConn
	frames   *frames.Reader
	stream   io.Writer
	protocol int // version that hello negotiated, 0 before hello
	handle   func(op wire.Op, payload []byte) error
	host     *hostConn // nil before the first request for the agent host
}

// Serve handles a session until it ends. It returns nil if the caller ended the session, otherwise the error that broke it.
func (r *Runner) Serve(conn net.Conn) error {
	defer conn.Close()
	timed := &timeoutConn{conn, readTimeout, writeTimeout}
	session := Session{Runner: r, conn: timed, frames: frames.NewReader(timed), stream: timed}
	session.handle = session.dispatch
	defer session.leaveHost()
	return session.serve()
}

// serve handles requests until the session ends.
func (s *Session) serve() error {
	for {
		err := s.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if errors.Is(err, frames.ErrBroken) {
			s.refuse(wire.Errorf(wire.CodeProtocol, "%v", err))
		}
		if err != nil {
			return err
		}
	}
}

// timeoutConn is a connection with a timeout for each read, and one for each part of a write.
type timeoutConn struct {
	net.Conn
	readTimeout, writeTimeout time.Duration
}

func (c *timeoutConn) Read(p []byte) (int, error) {
	c.SetReadDeadline(time.Now().Add(c.readTimeout))
	return c.Conn.Read(p)
}

func (c *timeoutConn) Write(p []byte) (written int, err error) {
	for written < len(p) && err == nil {
		c.SetWriteDeadline(time.Now().Add(c.writeTimeout))
		n := 0
		n, err = c.Conn.Write(p[written:min(len(p), written+progress)])
		written += n
	}
	return written, err
}

// next reads one request and responds to it. After an error the session is unusable.
func (s *Session) next() error {
	kind, _, err := s.frames.Next()
	if err != nil {
		return err
	}
	if kind == frames.Data || kind == frames.End {
		return s.stray(kind)
	}
	payload, err := s.frames.Payload()
	if err != nil {
		return err
	}
	var op wire.Op
	if err := json.Unmarshal(payload, &op); err != nil {
		return s.refuse(wire.Errorf(wire.CodeProtocol, "not a request: %v", err))
	}
	return s.handle(op, payload)
}

// stray skips a body frame that belongs to no request, because the sender may have sent the body before it received a refusal.
// stray responds once, at the body's end.
func (s *Session) stray(kind byte) error {
	if kind == frames.Data {
		return nil
	}
	return s.refuse(wire.Errorf(wire.CodeProtocol, "a body without a request"))
}

func (s *Session) dispatch(op wire.Op, payload []byte) error {
	if s.protocol == 0 && op.Op != "hello" {
		return s.refuse(wire.Errorf(wire.CodeProtocol, "%q before hello", wire.Cut(op.Op, 100)))
	}
	if op.Op == "hello" {
		return s.hello(payload)
	}
	operation, known := operations[op.Op]
	if !known || s.protocol < operation.since {
		return s.refuse(wire.Errorf(wire.CodeProtocol, "unknown op %q", wire.Cut(op.Op, 100)))
	}
	if operation.changes {
		s.Tracker.Wait()
	}
	return operation.run(s, payload)
}

func (s *Session) answer(value any) error {
	err := frames.WriteJSON(s.stream, frames.JSON, value)
	if errors.Is(err, frames.ErrTooLarge) { // without a response the caller would retry forever
		return s.refuse(wire.Errorf(wire.CodeProtocol, "%v", err))
	}
	return err
}

func (s *Session) refuse(reason *wire.Error) error {
	return s.answer(struct {
		OK    bool        `json:"ok"`
		Error *wire.Error `json:"error"`
	}{false, reason})
}

// Refuse sends the reason to a rejected caller and closes the connection.
func Refuse(conn net.Conn, why error) {
	conn.SetDeadline(time.Now().Add(time.Second))
	session := Session{stream: conn}
	session.refuse(wire.Errorf(wire.CodeRefused, "%v", why))
	conn.Close()
}

func (s *Session) answerRecord(record records.Record, refusal *wire.Error) error {
	if refusal != nil {
		return s.refuse(refusal)
	}
	return s.answer(struct {
		OK     bool           `json:"ok"`
		Record records.Record `json:"record"`
	}{answerOK, record})
}

func (s *Session) hello(payload []byte) error {
	var request struct {
		Protocols []int    `json:"protocols"`
		Records   *bool    `json:"records"`
		Users     []string `json:"users"`
	}
	if err := json.Unmarshal(payload, &request); err != nil { // unknown fields, which belong to later protocols, are ignored
		return s.refuse(wire.Errorf(wire.CodeProtocol, "%v", err))
	}
	agreed, ok := wire.Agree(s.Protocols, request.Protocols)
	if !ok {
		return s.refuse(wire.Errorf(wire.CodeRefused, "this runner speaks protocols %v", s.Protocols))
	}
	s.protocol = agreed
	own, known := s.Host.Users.Own(), []records.Record{}
	if request.Records == nil || *request.Records {
		known = s.known()
	}
	return s.answer(struct {
		OK         bool                     `json:"ok"`
		Protocol   int                      `json:"protocol"`
		Version    string                   `json:"version"`
		Instance   string                   `json:"instance"`
		PodUID     string                   `json:"podUID"`
		User       wire.User                `json:"user"`
		Workdir    string                   `json:"workdir"`
		RuntimeDir string                   `json:"runtimeDir"`
		StartedAt  float64                  `json:"startedAt"`
		Records    []records.Record         `json:"records"`
		Users      map[string]wire.Identity `json:"users"`
		Programs   []string                 `json:"rootPrograms,omitempty"`
	}{
		answerOK, s.protocol, s.Version, s.Instance, s.PodUID, wire.User{UID: own.UID, GID: own.GID, Name: own.Name, Home: own.Home},
		s.Host.Workdir, s.RuntimeDir, wire.Epoch(s.StartedAt), known, s.identities(request.Users), s.RootPrograms,
	})
}

// identities returns, by name, the IDs of the users that exist.
func (s *Session) identities(names []string) map[string]wire.Identity {
	found := map[string]wire.Identity{}
	for _, name := range names {
		if user, err := s.Host.Users.Lookup(name); err == nil {
			found[name] = wire.Identity{UID: user.UID, GIDs: user.Groups}
		}
	}
	return found
}

// known returns the records whose ops exist in the session's protocol version.
func (s *Session) known() []records.Record {
	return slices.DeleteFunc(s.Store.All(), func(each records.Record) bool { return operations[each.Op].since > s.protocol })
}

func (s *Session) start(request wire.Start) error {
	return s.startOnce(request.Op, func() any { return s.Host.Run(request) })
}

func (s *Session) healthcheck(request wire.Healthcheck) error {
	return s.startOnce(request.Op, func() any { return healthcheck.Run(request, s.Host.Run, healthcheck.Real) })
}

// startOnce runs do in the background, unless a record with this id exists.
func (s *Session) startOnce(op wire.Op, do func() any) error {
	record, fresh, refusal := s.Store.Start(op.ID, op.Op)
	if fresh {
		go func() {
			s.Tracker.Wait()
			s.Store.End(op.ID, do())
		}()
	}
	return s.answerRecord(record, refusal)
}

func (s *Session) wait(request wire.Wait) error {
	limit := min(wire.Seconds(request.TimeoutSeconds), maxWait)
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	return s.answerRecord(s.Store.Wait(ctx, request.ID))
}

// output responds with a part of a phase's output. It reads the record's state first, so that the output is complete if the state
// is done.
func (s *Session) output(request wire.Output) error {
	record, refusal := s.Store.Get(request.ID)
	if refusal != nil {
		return s.refuse(refusal)
	}
	printed, found := s.Host.Printed(request.ID, request.Offset, request.MaxBytes)
	if !found {
		printed = ending(record.Result, request)
	}
	return s.answer(struct {
		OK    bool   `json:"ok"`
		State string `json:"state"`
		wire.Printed
	}{answerOK, record.State, printed})
}

// ending returns the requested part of the output from a record's result, which contains only the output's tail.
func ending(result any, request wire.Output) wire.Printed {
	switch result := result.(type) {
	case wire.PhaseResult:
		return phase.Part([]byte(result.Tail), max(result.OutputBytes, int64(len(result.Tail))), request.Offset, request.MaxBytes)
	case wire.HealthcheckResult:
		return phase.Part([]byte(result.Tail), int64(len(result.Tail)), request.Offset, request.MaxBytes)
	}
	return wire.Printed{Base64: []byte{}}
}

func (s *Session) ack(request wire.Ack) error {
	record, refusal := s.Store.Acknowledge(request.ID)
	return s.answerRecord(record, refusal)
}

func (s *Session) note(request wire.Note) error {
	return s.answerRecord(s.Store.Once(request.ID, request.Op.Op, func() (any, *wire.Error) { return request.Data, nil }))
}

func (s *Session) admit(request wire.Admit) error {
	return s.answerRecord(s.Store.Once(request.ID, request.Op.Op, func() (any, *wire.Error) {
		if _, err := s.Host.User(request.User); err != nil {
			return wire.AdmitResult{Error: wire.Errorf(phase.NoSuchUser, "%v", err)}, nil
		}
		return wire.AdmitResult{Token: s.Guests.Admit(request.ID, request.User, request.Root)}, nil
	}))
}

func (s *Session) dismiss(request wire.Dismiss) error {
	return s.answerRecord(s.Store.Once(request.ID, request.Op.Op, func() (any, *wire.Error) {
		found, err := s.Guests.Dismiss(request.Admission, request.Kill)
		if err != nil {
			return wire.DismissResult{Found: found, Error: wire.Errorf(phase.Internal, "%v", err)}, nil
		}
		return wire.DismissResult{Found: found}, nil
	}))
}

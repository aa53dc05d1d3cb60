// Lists the operations, with the protocol version and the handler of each.

package session

import "multistep.dev/runner/internal/wire"

// operation handles the requests of one op. since is the first protocol version that has the op. changes tells whether the
// operation can change files, or admit guests who can, before it responds. Such an operation waits until the image's files are
// listed.
type operation struct {
	since   int
	run     func(*Session, []byte) error
	changes bool
}

// operations maps each op to its operation, except hello, which starts a session.
var operations = map[string]operation{
	"start":       {1, named((*Session).start, wire.Start{}), false},
	"healthcheck": {1, named((*Session).healthcheck, wire.NewHealthcheck()), false},
	"wait":        {1, named((*Session).wait, wire.Wait{}), false},
	"output":      {2, named((*Session).output, wire.Output{}), false},
	"ack":         {1, named((*Session).ack, wire.Ack{}), false},
	"note":        {1, named((*Session).note, wire.Note{}), false},
	"reset":       {1, named((*Session).reset, wire.Reset{}), true},
	"upload":      {1, named((*Session).upload, wire.Upload{}), true},
	"download":    {1, checked((*Session).download, wire.Download{}), false},
	"survey":      {2, checked((*Session).survey, wire.Survey{}), false},
	"send":        {2, named((*Session).sendFile, wire.Send{}), false},
	"admit":       {3, named((*Session).admit, wire.Admit{}), true},
	"dismiss":     {3, named((*Session).dismiss, wire.NewDismiss()), false},
	"checkpoint":  {4, checked((*Session).checkpoint, wire.NewCheckpoint()), false},
	"commit":      {4, named((*Session).commit, wire.Commit{}), false},
	"restore":     {4, named((*Session).restore, wire.NewRestore()), false},
	"baseline":    {4, named((*Session).baseline, wire.Baseline{}), false},
	"inspect":     {4, named((*Session).inspect, wire.Inspect{}), false},
	"host":        {5, checked((*Session).askHost, wire.Host{}), false},
}

// decoded decodes a payload into request, which contains the default values. It refuses an invalid request, and calls do for a
// valid one.
func decoded[R interface{ Check() error }](s *Session, payload []byte, request R, do func(R) error) error {
	err := wire.Decode(payload, &request)
	if err == nil {
		err = request.Check()
	}
	if err != nil {
		return s.refuse(wire.Errorf(wire.CodeProtocol, "%v", err))
	}
	return do(request)
}

// checked returns a handler that decodes and checks a request and then calls do.
func checked[R interface{ Check() error }](do func(*Session, R) error, defaults R) func(*Session, []byte) error {
	return func(s *Session, payload []byte) error {
		return decoded(s, payload, defaults, func(request R) error { return do(s, request) })
	}
}

// named is like checked, but also refuses a request without a valid id.
func named[R interface {
	Check() error
	CheckID() error
}](do func(*Session, R) error, defaults R) func(*Session, []byte) error {
	return checked(func(s *Session, request R) error {
		if err := request.CheckID(); err != nil {
			return s.refuse(wire.Errorf(wire.CodeProtocol, "%v", err))
		}
		return do(s, request)
	}, defaults)
}

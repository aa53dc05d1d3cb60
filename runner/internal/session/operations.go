package session

import "multistep.dev/runner/internal/wire"

// operation is what the requests of one op do. since: the first protocol that has it.
type operation struct {
	since int
	run   func(*Session, []byte) error
}

// operations are all but hello, which begins a session.
var operations = map[string]operation{
	"start":       {1, named((*Session).start, wire.Start{})},
	"healthcheck": {1, named((*Session).healthcheck, wire.NewHealthcheck())},
	"wait":        {1, named((*Session).wait, wire.Wait{})},
	"output":      {2, named((*Session).output, wire.Output{})},
	"ack":         {1, named((*Session).ack, wire.Ack{})},
	"note":        {1, named((*Session).note, wire.Note{})},
	"reset":       {1, named((*Session).reset, wire.Reset{})},
	"upload":      {1, named((*Session).upload, wire.Upload{})},
	"download":    {1, checked((*Session).download, wire.Download{})},
	"survey":      {2, checked((*Session).survey, wire.Survey{})},
	"send":        {2, named((*Session).sendFile, wire.Send{})},
}

// checked decodes a request over its defaults, refuses what cannot be meant, and does the rest.
func checked[R interface{ Check() error }](do func(*Session, R) error, defaults R) func(*Session, []byte) error {
	return func(s *Session, payload []byte) error {
		request := defaults
		err := wire.Decode(payload, &request)
		if err == nil {
			err = request.Check()
		}
		if err != nil {
			return s.refuse(wire.Errorf(wire.CodeProtocol, "%v", err))
		}
		return do(s, request)
	}
}

// named is checked for a request that needs an id.
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

// Handles the requests that look for traces of tampering.

package session

import (
	"runtime/debug"
	"strings"

	"multistep.dev/runner/internal/inspect"
	"multistep.dev/runner/internal/phase"
	"multistep.dev/runner/internal/wire"
)

// codeNoBaseline is the error code of an inspection without a baseline.
const codeNoBaseline = "NoBaseline"

func (s *Session) baseline(request wire.Baseline) error {
	return s.answerRecord(s.Store.Once(request.ID, request.Op.Op, func() (any, *wire.Error) {
		defer debug.FreeOSMemory() // frees memory at once, because it counts towards the trial's limit
		scope, failure := s.scope(request.Verification)
		if failure != nil {
			return wire.BaselineResult{Error: failure}, nil
		}
		result, err := s.Inspector.Baseline(scope)
		if err != nil {
			return wire.BaselineResult{Error: wire.Errorf(phase.Internal, "%v", err)}, nil
		}
		return result, nil
	}))
}

func (s *Session) inspect(request wire.Inspect) error {
	return s.answerRecord(s.Store.Once(request.ID, request.Op.Op, func() (any, *wire.Error) {
		defer debug.FreeOSMemory()
		none := wire.InspectResult{Findings: []wire.Finding{}, Processes: []string{}}
		scope, failure := s.scope(request.Verification)
		if failure != nil {
			none.Error = failure
			return none, nil
		}
		result, err := s.Inspector.Inspect(scope)
		if err != nil {
			none.Error = wire.Errorf(codeNoBaseline, "%v", err)
			return none, nil
		}
		return result, nil
	}))
}

// scope returns the scope of a verification's inspection. Its environment is that of the verification's phase.
func (s *Session) scope(request wire.Verification) (inspect.Scope, *wire.Error) {
	user, err := s.Host.User(request.User)
	if err != nil {
		return inspect.Scope{}, wire.Errorf(phase.NoSuchUser, "%v", err)
	}
	env := map[string]string{}
	for _, variable := range phase.Environment(s.Host.Env, user, request.Env) {
		name, value, _ := strings.Cut(string(variable), "=")
		env[name] = value
	}
	return inspect.Scope{
		Env: env, Directories: request.Directories, Workdir: s.Host.Workdir, Supervisors: s.Host.Reaper.Started,
	}, nil
}

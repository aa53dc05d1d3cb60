// Runs the searches of an inspection in order, and decides which suspects become findings.

package inspect

import (
	"cmp"
	"slices"

	"multistep.dev/runner/internal/wire"
)

const (
	maxPaths     = 20 // maximum number of paths of each kind in a response
	maxPathBytes = 300
)

// search is one inspection.
type search struct {
	*Inspector
	scope      Scope
	found      map[string]string // kind of each finding, by path
	suspects   []suspect         // possible findings in the order in which they are hashed, modules last
	incomplete bool
}

// suspect is a possible finding, which judge drops if a package manager installed the file. final is the file's path without links.
type suspect struct{ kind, file, final string }

// run searches the places with few files first, because an agent can create so many files in the others that the search reaches its
// timeout.
func (s *search) run() []wire.Finding {
	s.hooks()
	s.tests()
	s.planted()
	s.programs()
	s.libraries()
	s.modules()
	s.judge()
	s.incomplete = s.incomplete || s.files.ctx.Err() != nil
	return s.findings()
}

// judge reports the suspects that no package manager has installed.
func (s *search) judge() {
	var files []string
	listed := map[string]bool{} // each file is listed once, although many links can lead to it
	for _, each := range s.suspects {
		if !listed[each.final] {
			files, listed[each.final] = append(files, each.final), true
		}
	}
	known := s.vouched(files)
	for _, each := range s.suspects {
		switch verdict := known[each.final]; {
		case verdict == notHashed && isModule(each.final):
			s.incomplete = true // not a finding, because modules of large packages often exceed the limit of hashed bytes
		case verdict != installed:
			s.report(each.kind, each.file)
		}
	}
}

// report adds a finding, at most one for each path. If a path has a finding of the kind WorkdirHook, which alone is no evidence,
// another finding replaces it.
func (s *search) report(kind, file string) {
	if former, found := s.found[file]; !found || former == WorkdirHook {
		s.found[file] = kind
	}
}

// suspect adds a possible finding, about which judge decides.
func (s *search) suspect(kind, file, final string) {
	s.suspects = append(s.suspects, suspect{kind, file, final})
}

// findings returns one Finding for each kind.
func (s *search) findings() []wire.Finding {
	kinds := map[string][]string{}
	for file, kind := range s.found {
		kinds[kind] = append(kinds[kind], file)
	}
	found := []wire.Finding{}
	for kind, files := range kinds {
		slices.Sort(files)
		finding := wire.Finding{Kind: kind, Count: len(files)}
		for _, file := range files[:min(len(files), maxPaths)] {
			finding.Paths = append(finding.Paths, wire.Cut(file, maxPathBytes))
		}
		found = append(found, finding)
	}
	slices.SortFunc(found, func(a, b wire.Finding) int { return cmp.Compare(a.Kind, b.Kind) })
	return found
}

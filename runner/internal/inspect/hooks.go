// Finds files that loaders, shells, Python or pytest read at their start, and files that were planted for the verifier.

package inspect

import (
	"path"
	"strings"
	"syscall"
)

const maxPlanted = 1000

// pytestFiles lists files that change what pytest runs, in the directory of the tests or in a directory above it.
var pytestFiles = []string{"conftest.py", "pytest.ini", "sitecustomize.py", "usercustomize.py"}

// aboveTests lists further files that configure pytest. They count only in the root directory, because they are common in working
// directories.
var aboveTests = []string{"pyproject.toml", "tox.ini", "setup.cfg"}

// hooks finds new or changed files that the dynamic loader, a shell or Python reads when it starts.
func (s *search) hooks() {
	files := []string{"/etc/ld.so.preload"}
	for _, name := range []string{"BASH_ENV", "ENV", "PYTHONSTARTUP"} {
		files = append(files, s.scope.Env[name])
	}
	files = append(files, strings.FieldsFunc(s.scope.Env["LD_PRELOAD"], func(r rune) bool { return r == ':' || r == ' ' })...)
	for _, directory := range strings.Split(s.scope.Env["PYTHONPATH"], ":") {
		for _, name := range startupModules {
			files = append(files, path.Join(directory, name+".py"))
		}
	}
	for _, file := range files {
		if !path.IsAbs(file) {
			continue
		}
		if final, err := s.files.resolve(file); err == nil && (s.changed(file) || s.changed(final)) {
			s.suspect(StartupHook, file, final)
		}
	}
}

// tests finds new or changed files that pytest reads, in the working directory and its parents, and in the root directory (which is
// above the verifier's tests).
func (s *search) tests() {
	for directory := path.Clean(s.scope.Workdir); directory != "/"; directory = path.Dir(directory) {
		for _, name := range pytestFiles {
			s.testHook(WorkdirHook, path.Join(directory, name))
		}
	}
	kind, names := TestHook, append(aboveTests, pytestFiles...)
	if path.Clean(s.scope.Workdir) == "/" {
		kind, names = WorkdirHook, pytestFiles // the agent works in this directory
	}
	for _, name := range names {
		s.testHook(kind, "/"+name)
	}
}

func (s *search) testHook(kind, file string) {
	stat, err := s.files.lstat(file)
	if err == nil && s.isLater(&stat) && s.uploaded[file] != stat.Ctim.Nano() {
		s.report(kind, file)
	}
}

// planted finds new and changed files in the verifier's directories.
func (s *search) planted() {
	for _, directory := range s.scope.Directories {
		err := s.files.walk(directory, maxPlanted, func(file string, stat *syscall.Stat_t) {
			if !s.baseline.planted.has(file) || s.isLater(stat) && stat.Mode&syscall.S_IFMT != syscall.S_IFDIR {
				s.report(VerifierFilesPlanted, file)
			}
		})
		if err != nil {
			s.incomplete = true
		}
	}
}

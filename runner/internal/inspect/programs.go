// Finds changed programs, and new programs that run in place of an earlier one.

package inspect

import (
	"path"
	"slices"
	"strings"
	"syscall"
)

const (
	standardPath   = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	maxDirectories = 64
)

// multicall lists programs that implement many commands. The name of the link to the program selects the command.
var multicall = []string{"busybox", "coreutils", "toybox"}

// programDirectories returns the directories in which programs are searched, in the order of the search, with links resolved and
// without duplicates.
func (i *Inspector) programDirectories(env map[string]string) (found []string) {
	for _, directory := range strings.Split(env["PATH"]+":"+standardPath, ":") {
		if !path.IsAbs(directory) || len(found) == maxDirectories {
			continue
		}
		if final, err := i.files.resolve(directory); err == nil && !slices.Contains(found, final) {
			found = append(found, final)
		}
	}
	return found
}

// programs adds a finding for each program that was changed since the baseline, or that is new and shadows one of the baseline.
func (s *search) programs() {
	directories := s.programDirectories(s.scope.Env)
	for number, directory := range directories {
		for _, name := range s.files.names(directory) {
			file := path.Join(directory, name)
			former, known := s.baseline.programs[file]
			if !known && !s.shadows(name, directories, number) {
				continue
			}
			final, err := s.files.resolve(file)
			if err != nil || known && final == former && !s.changed(final) {
				continue
			}
			if !known && !s.changed(file) && !s.changed(final) {
				continue // the program existed before the agent ran, in a directory that was not in PATH
			}
			kind := ProgramShadowed
			if known {
				kind = SystemFileChanged
			}
			s.program(kind, name, file, former, final)
		}
	}
}

// shadows returns whether a new file in directories[number] is found before a program of the baseline. Then a later directory
// contains the program, and no earlier directory contains a program of this name.
func (s *search) shadows(name string, directories []string, number int) bool {
	if slices.ContainsFunc(directories[:number], func(directory string) bool {
		_, err := s.files.resolve(path.Join(directory, name))
		return err == nil
	}) {
		return false
	}
	return slices.ContainsFunc(directories[number+1:], func(directory string) bool {
		_, known := s.baseline.programs[path.Join(directory, name)]
		return known
	})
}

// program adds a finding for a changed or new program. It adds none if npm replaced the program, or if a link now leads to another,
// unchanged file that implements the same command. This is assumed if the names differ only in the version, if the file is one of
// multicall or a shell for sh, or if Debian's database of alternatives lists the file.
func (s *search) program(kind, name, file, former, final string) {
	target := path.Base(final)
	same := stem(name) == stem(target) || slices.Contains(multicall, target) || name == "sh" && (target == "bash" || target == "dash")
	switch {
	case inNodeModules(former) && inNodeModules(final):
	case final != former && !same && !s.isAlternative(file, final):
		if s.files.ctx.Err() == nil { // after the timeout, the alternative may be unknown
			s.report(kind, file)
		}
	case s.changed(final):
		s.suspect(kind, file, final)
	}
}

func inNodeModules(file string) bool { return strings.Contains(file, "/node_modules/") }

// stem returns the name of a program without its version, e.g. "python" for python3.11.
func stem(name string) string {
	return strings.TrimRight(name, "0123456789.-")
}

const alternatives = "/var/lib/dpkg/alternatives"

// isAlternative returns whether Debian's database of alternatives contains the final path for a link.
func (s *search) isAlternative(link, final string) bool {
	return slices.ContainsFunc(s.files.names(alternatives), func(name string) bool {
		lines := strings.Split(string(s.files.read(path.Join(alternatives, name), 1<<20)), "\n")
		return slices.Contains(lines, link) && slices.Contains(lines, final)
	})
}

// changed returns whether a file was changed or created after the baseline. For a link it checks the link itself, not its target.
func (s *search) changed(file string) bool {
	stat, err := s.files.lstat(file)
	return err == nil && s.isLater(&stat)
}

func (s *search) isLater(stat *syscall.Stat_t) bool { return stat.Ctim.Nano() > s.baseline.time }

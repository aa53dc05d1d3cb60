// Finds changed and shadowed Python modules, and files that run code in every Python process.

package inspect

import (
	"bufio"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
)

const (
	maxModules   = 300_000
	maxHookBytes = 1 << 20
)

// moduleFile is a file of a Python library. name is the top-level module or package that contains the file. top tells whether the
// file is directly in a directory on Python's search path, or is the __init__.py of a package there.
type moduleFile struct {
	path, name string
	top        bool
	stat       *syscall.Stat_t
}

// startupModules lists the modules that every Python interpreter imports at its start.
var startupModules = []string{"sitecustomize", "usercustomize"}

// pythonLibraries returns the directories lib/python3* beside the directories of programs, and in the user's ~/.local.
func (i *Inspector) pythonLibraries(env map[string]string) (found []string) {
	var prefixes []string
	for _, directory := range i.programDirectories(env) {
		prefixes = append(prefixes, path.Dir(directory))
	}
	for _, prefix := range append(prefixes, path.Join(env["HOME"], ".local")) {
		for _, lib := range []string{"lib", "lib64"} {
			for _, name := range i.files.names(path.Join(prefix, lib)) {
				final, err := i.files.resolve(path.Join(prefix, lib, name))
				if strings.HasPrefix(name, "python3") && err == nil && !slices.Contains(found, final) {
					found = append(found, final)
				}
			}
		}
	}
	return found
}

// walkModules calls visit for the files that Python can import or runs at its start. It calls cached for compiled modules in
// Python's caches, with the path of their source.
func (i *Inspector) walkModules(env map[string]string, visit func(moduleFile), cached func(source, file string, stat *syscall.Stat_t)) error {
	left := maxModules
	for _, library := range i.pythonLibraries(env) {
		err := i.files.walk(library, left, func(file string, stat *syscall.Stat_t) {
			left--
			if isIn(file, "/__pycache__/") {
				cached(sourceOf(file), file, stat)
			} else if isModule(file) && !i.hasSource(file) {
				name, top := moduleName(library, file)
				visit(moduleFile{file, name, top, stat})
			}
		})
		if err != nil {
			return err
		}
	}
	return i.files.ctx.Err()
}

func isModule(file string) bool {
	switch path.Ext(file) {
	case ".py", ".pyc", ".pth", ".so":
		return true
	}
	return false
}

// hasSource returns whether Python runs the source beside a compiled module instead of the module.
func (i *Inspector) hasSource(file string) bool {
	if path.Ext(file) != ".pyc" {
		return false
	}
	_, err := i.files.lstat(strings.TrimSuffix(file, "c"))
	return err == nil
}

// sourceOf returns the path of the source of a compiled module, DIRECTORY/__pycache__/NAME.TAG.pyc or NAME.TAG.opt-N.pyc.
func sourceOf(file string) string {
	name := strings.TrimSuffix(path.Base(file), ".pyc")
	if at := strings.LastIndex(name, ".opt-"); at > 0 {
		name = name[:at]
	}
	return path.Join(path.Dir(path.Dir(file)), strings.TrimSuffix(name, path.Ext(name))+".py")
}

func isIn(file, directory string) bool { return strings.Contains(file, directory) }

// moduleName returns the fields name and top of the moduleFile of a file in a library.
func moduleName(library, file string) (name string, top bool) {
	rest := strings.TrimPrefix(file, library+"/")
	for _, packages := range []string{"site-packages/", "dist-packages/", "lib-dynload/"} {
		rest = strings.TrimPrefix(rest, packages)
	}
	directory, base, nested := strings.Cut(rest, "/")
	name, _, _ = strings.Cut(directory, ".")
	return name, !nested || strings.TrimSuffix(base, "c") == "__init__.py"
}

// modules finds changed files of Python's libraries, new files that shadow a module, and files that run code in every Python
// process. It deletes compiled forms that were written after the baseline, because Python would run them instead of the sources,
// which are compared. Python compiles these modules again.
func (s *search) modules() {
	err := s.walkModules(s.scope.Env, func(module moduleFile) {
		final, later := module.path, s.isLater(module.stat)
		if module.stat.Mode&syscall.S_IFMT == syscall.S_IFLNK {
			target, err := s.files.resolve(module.path)
			if err != nil {
				return
			}
			final, later = target, later || s.changed(target)
		}
		if !later {
			return
		}
		known := s.baseline.modules.has(module.path)
		switch {
		case module.top && slices.Contains(startupModules, module.name):
			s.suspect(StartupHook, module.path, final)
		case path.Ext(module.path) == ".pth":
			if module.top && s.runsCode(module.path) {
				s.suspect(StartupHook, module.path, final)
			}
		case known:
			s.suspect(SystemFileChanged, module.path, final)
		case module.top && s.baseline.names[module.name]:
			s.suspect(ProgramShadowed, module.path, final)
		}
	}, func(source, file string, stat *syscall.Stat_t) {
		if s.baseline.modules.has(source) && s.isLater(stat) && os.Remove(s.files.root+file) != nil {
			s.incomplete = true
		}
	})
	if err != nil {
		s.incomplete = true
	}
}

// runsCode returns whether Python runs a line of a .pth file, instead of adding it to its search path.
func (s *search) runsCode(file string) bool {
	lines := bufio.NewScanner(strings.NewReader(string(s.files.read(file, maxHookBytes))))
	lines.Buffer(nil, maxHookBytes+1)
	for lines.Scan() {
		if line := lines.Text(); strings.HasPrefix(line, "import ") || strings.HasPrefix(line, "import\t") {
			return true
		}
	}
	return false
}

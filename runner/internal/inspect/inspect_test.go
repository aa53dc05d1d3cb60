package inspect

import (
	"context"
	"crypto/md5"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

// image is a directory with the files of an image, and an Inspector of them.
type image struct {
	t         *testing.T
	root      string
	inspector *Inspector
	scope     Scope
}

func newImage(t *testing.T) *image {
	root := t.TempDir()
	i := &image{t, root, New(root), Scope{
		Env: map[string]string{"HOME": "/root"}, Directories: []string{"/tests", "/logs/verifier"}, Workdir: "/app",
		Supervisors: func() map[int]bool { return nil },
	}}
	for _, directory := range []string{"app", "tests", "logs/verifier", "usr/local/bin", "root"} {
		i.check(os.MkdirAll(filepath.Join(root, directory), 0o755))
	}
	for _, file := range []string{
		"usr/bin/bash", "usr/bin/dash", "usr/bin/true", "usr/bin/grep", "usr/bin/python3.11", "usr/bin/python3.12",
		"usr/lib/python3.11/os.py", "usr/lib/python3/dist-packages/pytest.py", "usr/lib/libc.so.6", "usr/lib/ld-linux.so.2",
	} {
		i.write(file, "of the image")
	}
	i.link("usr/bin", "bin")
	i.link("usr/lib", "lib")
	i.link("python3.11", "usr/bin/python3")
	i.write("etc/python3.11/sitecustomize.py", "of the image")
	i.link("/etc/python3.11/sitecustomize.py", "usr/lib/python3.11/sitecustomize.py")
	i.link("dash", "usr/bin/sh")
	i.write("etc/ld.so.cache", cache(map[string]string{"libc.so.6": "/lib/libc.so.6", "libz.so.1": "/lib/libz.so.1"}))
	return i
}

// cache returns the content of a dynamic loader's cache with these libraries.
func cache(libraries map[string]string) string {
	header := make([]byte, headerBytes)
	copy(header, cacheMagic)
	binary.NativeEndian.PutUint32(header[len(cacheMagic):], uint32(len(libraries)))
	texts, start := "", headerBytes+entryBytes*len(libraries)
	for name, file := range libraries {
		entry := make([]byte, entryBytes)
		binary.NativeEndian.PutUint32(entry[4:], uint32(start+len(texts)))
		binary.NativeEndian.PutUint32(entry[8:], uint32(start+len(texts)+len(name)+1))
		header, texts = append(header, entry...), texts+name+"\x00"+file+"\x00"
	}
	return string(header) + texts
}

func (i *image) check(err error) {
	i.t.Helper()
	if err != nil {
		i.t.Fatal(err)
	}
}

func (i *image) write(file, content string) {
	i.t.Helper()
	file = filepath.Join(i.root, file)
	i.check(os.MkdirAll(filepath.Dir(file), 0o755))
	if info, err := os.Lstat(file); err == nil && info.Mode().Type() == os.ModeSymlink {
		i.check(os.Remove(file)) // a write would follow the link and change a file of this machine
	}
	i.check(os.WriteFile(file, []byte(content), 0o755))
}

func (i *image) link(target, file string) {
	i.t.Helper()
	file = filepath.Join(i.root, file)
	i.check(os.MkdirAll(filepath.Dir(file), 0o755))
	os.Remove(file)
	i.check(os.Symlink(target, file))
}

func (i *image) baseline() {
	i.t.Helper()
	_, err := i.inspector.Baseline(i.scope)
	i.check(err)
}

// found returns the findings as "KIND PATH".
func (i *image) found() []string {
	i.t.Helper()
	result, err := i.inspector.Inspect(i.scope)
	i.check(err)
	found := []string{}
	for _, finding := range result.Findings {
		for _, path := range finding.Paths {
			found = append(found, finding.Kind+" "+path)
		}
	}
	return found
}

func (i *image) expect(want ...string) {
	i.t.Helper()
	if found := i.found(); !reflect.DeepEqual(found, append([]string{}, want...)) {
		i.t.Fatalf("found %q, want %q", found, want)
	}
}

func TestAnUnchangedImageHasNoFindings(t *testing.T) {
	i := newImage(t)
	i.baseline()
	i.write("app/solution.py", "print(1)")
	i.write("usr/local/bin/new-tool", "a new program")
	i.expect()
}

func TestWhatChangedBeforeTheBaselineIsNoFinding(t *testing.T) {
	i := newImage(t)
	i.write("usr/bin/python3.11", "changed by setup.sh")
	i.write("tests/conftest.py", "of the image")
	i.baseline()
	i.baseline() // a second call does not replace the first baseline
	i.expect()
}

func TestEachAttackIsFound(t *testing.T) {
	for name, each := range map[string]struct {
		attack func(*image)
		want   string
	}{
		"program":                 {func(i *image) { i.write("usr/bin/python3.11", "trojan") }, "SystemFileChanged /usr/bin/python3"},
		"shell":                   {func(i *image) { i.write("usr/bin/bash", "trojan") }, "SystemFileChanged /usr/bin/bash"},
		"link":                    {func(i *image) { i.link("true", "usr/bin/grep") }, "SystemFileChanged /usr/bin/grep"},
		"new version":             {func(i *image) { i.write("opt/python3.13", ""); i.link("/opt/python3.13", "usr/bin/python3") }, "SystemFileChanged /usr/bin/python3"},
		"shadow":                  {func(i *image) { i.write("usr/local/bin/grep", "exit 0") }, "ProgramShadowed /usr/local/bin/grep"},
		"link that shadows":       {func(i *image) { i.link("/usr/bin/true", "usr/local/bin/grep") }, "ProgramShadowed /usr/local/bin/grep"},
		"directory in PATH":       {replaceLocal, "ProgramShadowed /app/bin/grep"},
		"C library":               {func(i *image) { i.write("usr/lib/libc.so.6", "trojan") }, "SystemFileChanged /usr/lib/libc.so.6"},
		"second C library":        {secondLibrary, "ProgramShadowed /opt/libc.so.6"},
		"loader":                  {func(i *image) { i.write("usr/lib/ld-linux.so.2", "trojan") }, "SystemFileChanged /usr/lib/ld-linux.so.2"},
		"no loader's cache":       {func(i *image) { i.check(os.Remove(filepath.Join(i.root, cachePath))) }, "SystemFileChanged /etc/ld.so.cache"},
		"preload":                 {func(i *image) { i.write("etc/ld.so.preload", "/app/evil.so") }, "StartupHook /etc/ld.so.preload"},
		"BASH_ENV":                {func(i *image) { i.scope.Env["BASH_ENV"] = "/root/env"; i.write("root/env", "x") }, "StartupHook /root/env"},
		"LD_PRELOAD":              {func(i *image) { i.scope.Env["LD_PRELOAD"] = "/a.so:/b.so"; i.write("b.so", "x") }, "StartupHook /b.so"},
		"PYTHONPATH":              {func(i *image) { i.scope.Env["PYTHONPATH"] = "/srv"; i.write("srv/sitecustomize.py", "x") }, "StartupHook /srv/sitecustomize.py"},
		"sitecustomize":           {func(i *image) { i.write("usr/lib/python3/dist-packages/sitecustomize.py", "x") }, "StartupHook /usr/lib/python3/dist-packages/sitecustomize.py"},
		"target of sitecustomize": {func(i *image) { i.write("etc/python3.11/sitecustomize.py", "x") }, "StartupHook /usr/lib/python3.11/sitecustomize.py"},
		"usercustomize":           {func(i *image) { i.write("root/.local/lib/python3.11/site-packages/usercustomize.py", "x") }, "StartupHook /root/.local/lib/python3.11/site-packages/usercustomize.py"},
		"pth":                     {func(i *image) { i.write("usr/lib/python3/dist-packages/x.pth", "import os; os.system('x')\n") }, "StartupHook /usr/lib/python3/dist-packages/x.pth"},
		"module":                  {func(i *image) { i.write("usr/lib/python3.11/os.py", "trojan") }, "SystemFileChanged /usr/lib/python3.11/os.py"},
		"module that shadows": {func(i *image) { i.write("usr/local/lib/python3.11/dist-packages/pytest/__init__.py", "") },
			"ProgramShadowed /usr/local/lib/python3.11/dist-packages/pytest/__init__.py"},
		"conftest above the tests": {func(i *image) { i.write("conftest.py", "x") }, "TestHook /conftest.py"},
		"configuration above":      {func(i *image) { i.write("pyproject.toml", "x") }, "TestHook /pyproject.toml"},
		"conftest":                 {func(i *image) { i.write("app/conftest.py", "x") }, "WorkdirHook /app/conftest.py"},
		"tests":                    {func(i *image) { i.write("tests/conftest.py", "x") }, "VerifierFilesPlanted /tests/conftest.py"},
		"reward":                   {func(i *image) { i.write("logs/verifier/reward.txt", "1") }, "VerifierFilesPlanted /logs/verifier/reward.txt"},
		"link to tests":            {func(i *image) { i.check(os.Remove(i.root + "/tests")); i.link("/app", "tests") }, "VerifierFilesPlanted /tests"},
	} {
		t.Run(name, func(t *testing.T) {
			i := newImage(t)
			i.baseline()
			each.attack(i)
			if found := i.found(); !contains(found, each.want) {
				t.Fatalf("found %q, not %q", found, each.want)
			}
		})
	}
}

func replaceLocal(i *image) {
	i.write("app/bin/grep", "exit 0")
	i.check(os.RemoveAll(filepath.Join(i.root, "usr/local/bin")))
	i.link("/app/bin", "usr/local/bin")
}

func secondLibrary(i *image) {
	i.write("opt/libc.so.6", "trojan")
	i.write("etc/ld.so.cache", cache(map[string]string{"libc.so.6": "/opt/libc.so.6"}))
}

func contains(found []string, want string) bool {
	for _, each := range found {
		if each == want {
			return true
		}
	}
	return false
}

func (i *image) dpkg(file, content string) {
	line := fmt.Sprintf("%x  %s\n", md5.Sum([]byte(content)), file)
	i.write("var/lib/dpkg/info/"+filepath.Base(file)+".md5sums", line)
}

func TestCompiledModulesThatMayDifferFromTheirSourcesAreCompiledAgain(t *testing.T) {
	i := newImage(t)
	caches := "usr/lib/python3.11/__pycache__/"
	i.write(caches+"old.cpython-311.pyc", "of the image")
	i.write("usr/lib/python3.11/old.py", "of the image")
	i.baseline()
	for _, name := range []string{"os.cpython-311.pyc", "os.cpython-311.opt-1.pyc", "new.cpython-311.pyc"} {
		i.write(caches+name, "an agent's")
	}
	i.write("usr/lib/python3.11/new.py", "an agent's")
	i.expect()
	left, err := os.ReadDir(filepath.Join(i.root, caches))
	i.check(err)
	names := []string{}
	for _, each := range left {
		names = append(names, each.Name())
	}
	if !slices.Equal(names, []string{"new.cpython-311.pyc", "old.cpython-311.pyc"}) {
		t.Error(names)
	}
	i.write("usr/lib/python3.11/old.pyc", "never run, as old.py comes first")
	i.write("usr/lib/python3.11/os/__init__.pyc", "in place of os.py")
	i.expect("ProgramShadowed /usr/lib/python3.11/os/__init__.pyc")
}

func TestWhatAPackageManagerInstalledIsNoFinding(t *testing.T) {
	for name, install := range map[string]func(*image){
		"dpkg upgrades a program": func(i *image) { i.write("usr/bin/bash", "5.3"); i.dpkg("bin/bash", "5.3") },
		"dpkg upgrades libc":      func(i *image) { i.write("usr/lib/libc.so.6", "2.37"); i.dpkg("usr/lib/libc.so.6", "2.37") },
		"dpkg installs a configuration file": func(i *image) {
			i.write("etc/python3.11/sitecustomize.py", "x")
			i.write("var/lib/dpkg/status", fmt.Sprintf("Package: p\nConffiles:\n /etc/python3.11/sitecustomize.py %x\n", md5.Sum([]byte("x"))))
		},
		"another version of Python is chosen": func(i *image) { i.link("python3.12", "usr/bin/python3") },
		"bash becomes sh":                     func(i *image) { i.link("bash", "usr/bin/sh") },
		"an alternative is chosen": func(i *image) {
			i.write("usr/bin/ggrep", "x")
			i.dpkg("usr/bin/ggrep", "x")
			i.write("var/lib/dpkg/alternatives/egrep", "auto\n/usr/bin/egrep\ngrep\n/usr/bin/grep\n\n/usr/bin/ggrep\n10\n")
			i.link("/usr/bin/ggrep", "usr/bin/grep")
		},
		"apk replaces a program": func(i *image) {
			i.write("usr/bin/grep", "gnu")
			sum := sha1.Sum([]byte("gnu"))
			i.write("lib/apk/db/installed", "P:grep\nF:usr/bin\nR:grep\nZ:Q1"+base64.StdEncoding.EncodeToString(sum[:])+"\n")
		},
		"pip installs": func(i *image) {
			i.write("usr/local/lib/python3.11/dist-packages/pytest/__init__.py", "new")
			i.write("usr/local/lib/python3.11/dist-packages/hook.pth", "import hook")
			i.write("usr/local/bin/grep", "a script")
			record := ""
			for file, content := range map[string]string{"pytest/__init__.py": "new", "hook.pth": "import hook", "../../../bin/grep": "a script"} {
				sum := sha256.Sum256([]byte(content))
				record += file + ",sha256=" + base64.RawURLEncoding.EncodeToString(sum[:]) + ",1\n"
			}
			i.write("usr/local/lib/python3.11/dist-packages/pytest-9.dist-info/RECORD", record)
		},
		"a path of an editable package": func(i *image) { i.write("usr/lib/python3/dist-packages/easy.pth", "/app/src\n") },
		"npm upgrades itself": func(i *image) {
			i.link("../lib/node_modules/npm/cli.js", "usr/local/bin/npm")
			i.write("usr/local/lib/node_modules/npm/cli.js", "new")
		},
		"dpkg upgrades a program that has another name, too": func(i *image) { i.write("usr/bin/dash", "2"); i.dpkg("bin/dash", "2") },
		"a new program is no other's name":                   func(i *image) { i.write("usr/local/bin/tool", "x") },
		"a program behind that of the image":                 func(i *image) { i.write("sbin/local-only", "x") },
	} {
		t.Run(name, func(t *testing.T) {
			i := newImage(t)
			i.link("../lib/node_modules/npm/cli.js", "usr/local/bin/npm")
			i.write("usr/local/lib/node_modules/npm/cli.js", "old")
			i.link("dash", "usr/bin/ash")
			i.baseline()
			install(i)
			i.expect()
		})
	}
}

func TestAPackagesDigestDoesNotExplainOtherContent(t *testing.T) {
	i := newImage(t)
	i.baseline()
	i.dpkg("bin/bash", "5.3")
	i.write("usr/bin/bash", "trojan")
	i.expect("SystemFileChanged /usr/bin/bash")
}

func TestUploadedHooksAreTheTasks(t *testing.T) {
	i := newImage(t)
	i.baseline()
	i.write("app/pytest.ini", "of the agent")
	since := separate()
	i.write("app/conftest.py", "of the task")
	i.inspector.Uploaded("/app", since)
	i.expect("WorkdirHook /app/pytest.ini")
	i.write("app/conftest.py", "of the agent")
	i.expect("WorkdirHook /app/conftest.py", "WorkdirHook /app/pytest.ini")
}

func TestAnAgentThatWorksInTheRootDirectoryMayWriteTestsThere(t *testing.T) {
	i := newImage(t)
	i.scope.Workdir = "/"
	i.baseline()
	i.write("conftest.py", "of the agent")
	i.expect("WorkdirHook /conftest.py")
}

func TestFloodsAreCountedAndCut(t *testing.T) {
	i := newImage(t)
	i.baseline()
	for number := range maxPlanted + 10 {
		i.write(fmt.Sprintf("tests/%d", number), "x")
	}
	i.write("usr/bin/bash", "trojan")
	result, err := i.inspector.Inspect(i.scope)
	i.check(err)
	if !result.Incomplete || len(result.Findings) != 2 || len(result.Findings[1].Paths) != maxPaths || result.Findings[1].Count != maxPlanted {
		t.Fatal(result)
	}
}

// processorTime returns the CPU time that this process has used: unlike the time on a clock, it is the same on a busy machine.
func processorTime(t *testing.T) time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		t.Fatal(err)
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

func TestAnInspectionEndsInTimeAndFindsWhatTakesNone(t *testing.T) {
	for name, attack := range map[string]func(*image){
		"large alternatives": func(i *image) { // a check of each program would read them all
			for number := range 3000 {
				i.write(fmt.Sprintf("var/lib/dpkg/alternatives/%d", number), "")
				i.check(os.Truncate(filepath.Join(i.root, "var/lib/dpkg/alternatives", fmt.Sprint(number)), 1<<20))
				i.link("/usr/bin/true", fmt.Sprintf("usr/bin/p%d", number))
			}
		},
		"long links": func(i *image) {
			i.link(strings.Repeat("bin/../", 580)+"true", "usr/0")
			for number := range 39 {
				i.link(strings.Repeat("bin/../", 580)+fmt.Sprint(number), fmt.Sprintf("usr/%d", number+1))
			}
			for number := range 3000 {
				i.link("../38", fmt.Sprintf("usr/bin/p%d", number))
			}
		},
		"one text for all libraries": func(i *image) {
			const entries = 200_000
			header := []byte(cache(nil))
			binary.NativeEndian.PutUint32(header[len(cacheMagic):], entries)
			for number := range uint32(entries) {
				header = binary.NativeEndian.AppendUint32(header, 0)
				header = binary.NativeEndian.AppendUint32(header, headerBytes+entries*entryBytes+number)
				header = binary.NativeEndian.AppendUint32(header, headerBytes+entries*entryBytes)
				header = append(header, make([]byte, entryBytes-12)...)
			}
			i.write("etc/ld.so.cache", string(header)+strings.Repeat("/", maxCacheBytes-len(header)))
		},
	} {
		t.Run(name, func(t *testing.T) {
			defer func(former time.Duration) { timeout = former }(timeout)
			i := newImage(t)
			for number := range 3000 {
				i.link("grep", fmt.Sprintf("usr/bin/p%d", number))
			}
			i.baseline()
			attack(i)
			i.write("tests/conftest.py", "x")
			i.write("conftest.py", "x")
			timeout = 2 * time.Second
			before := processorTime(t)
			found := i.found()
			if took := processorTime(t) - before; took > timeout+3*time.Second { // the attacks would take minutes
				t.Error(took)
			}
			for _, want := range []string{"TestHook /conftest.py", "VerifierFilesPlanted /tests/conftest.py"} {
				if !contains(found, want) {
					t.Errorf("found %q, not %q", found, want)
				}
			}
		})
	}
}

// An inspection that times out before it has read the database of alternatives must not report an installed alternative.
func TestAnAlternativeThatWasNotReadInTimeIsNoFinding(t *testing.T) {
	i := newImage(t)
	i.link("/usr/bin/grep", "usr/bin/pager")
	i.baseline()
	i.write("var/lib/dpkg/alternatives/pager", "auto\n/usr/bin/pager\n\n/usr/bin/grep\n10\n/usr/bin/true\n20\n")
	for _, late := range []bool{false, true} {
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		if late {
			cancel()
		}
		s := &search{Inspector: i.inspector.until(ctx), scope: i.scope, found: map[string]string{}}
		s.program(SystemFileChanged, "pager", "/usr/bin/pager", "/usr/bin/grep", "/usr/bin/true")
		if len(s.found) > 0 {
			t.Errorf("late: %v, found: %v", late, s.found)
		}
	}
}

func TestLinksInACircleEndTheirResolution(t *testing.T) {
	i := newImage(t)
	i.baseline()
	i.link("grep", "usr/bin/grep")
	i.link("/usr/../usr/bin/./python3", "usr/local/bin/python")
	if _, err := i.inspector.files.resolve("/usr/bin/grep"); err == nil {
		t.Fatal("resolved")
	}
	if final, err := i.inspector.files.resolve("/usr/local/bin/python"); final != "/usr/bin/python3.11" {
		t.Fatal(final, err)
	}
}

func TestDamagedDatabasesExplainNothing(t *testing.T) {
	i := newImage(t)
	i.baseline()
	i.write("usr/bin/bash", "trojan")
	i.write("var/lib/dpkg/info/x.md5sums", "nothing\nzz  bin/bash\n"+strings.Repeat("x", maxLine+1))
	i.write("lib/apk/db/installed", "R:bash\nZ:Q1!!\n")
	i.write("etc/ld.so.cache", cacheMagic)
	result, err := i.inspector.Inspect(i.scope)
	i.check(err)
	if len(result.Findings) != 1 || !result.Incomplete {
		t.Fatal(result)
	}
}

func TestWithoutABaselineNothingIsKnown(t *testing.T) {
	if _, err := New(t.TempDir()).Inspect(Scope{}); err != ErrNoBaseline {
		t.Fatal(err)
	}
}

func TestProgramsByWhichAUserMayBecomeRootAreNamed(t *testing.T) {
	i := newImage(t)
	for _, file := range []string{"/usr/bin/sudo", "/usr/bin/su", "/usr/bin/own", "/usr/bin/nobodys", "/usr/bin/plain", "/srv/hidden"} {
		i.write(file, "x")
		i.check(os.Chmod(i.root+file, 0o755|os.ModeSetuid))
	}
	i.check(os.Chown(i.root+"/usr/bin/own", 1000, 1000))
	i.check(os.Chmod(i.root+"/usr/bin/own", 0o755|os.ModeSetuid))
	i.check(os.Chmod(i.root+"/usr/bin/nobodys", 0o644|os.ModeSetuid))
	i.check(os.Chmod(i.root+"/usr/bin/plain", 0o755))
	i.link("sudo", "/usr/bin/link")
	if found := RootPrograms(i.root, i.scope.Env); !reflect.DeepEqual(found, []string{"/usr/bin/sudo"}) {
		t.Error(found)
	}
}

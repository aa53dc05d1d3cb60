package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"multistep.dev/runner/internal/frames"
)

// member is a member of a tar stream. A name that ends in a slash is a directory; " -> " in a name makes a symbolic link, " => " a
// hard link.
type member struct {
	name, text string
	mode       int64
}

func archive(members ...member) []byte {
	var buffer bytes.Buffer
	writer := tar.NewWriter(&buffer)
	for _, m := range members {
		header := &tar.Header{Name: m.name, Mode: m.mode, Size: int64(len(m.text)), Typeflag: tar.TypeReg, Format: tar.FormatPAX}
		if strings.HasSuffix(m.name, "/") {
			header.Typeflag = tar.TypeDir
		}
		if name, target, found := strings.Cut(m.name, " -> "); found {
			header.Typeflag, header.Name, header.Linkname = tar.TypeSymlink, name, target
		}
		if name, target, found := strings.Cut(m.name, " => "); found {
			header.Typeflag, header.Name, header.Linkname = tar.TypeLink, name, target
		}
		check(writer.WriteHeader(header))
		io.WriteString(writer, m.text)
	}
	check(writer.Close())
	return buffer.Bytes()
}

// upload sends an upload request and the body, with this trailer or, if it is nil, the correct one. It returns the last response.
func (s *session) upload(target, user string, body []byte, trailer object) object {
	s.t.Helper()
	lastID++
	answer := s.ask(object{"op": "upload", "id": fmt.Sprintf("upload/%d", lastID), "target": target, "user": user})
	if answer["proceed"] != true {
		return answer
	}
	s.sendBody(body, trailer)
	return s.receive()
}

func (s *session) sendBody(body []byte, trailer object) {
	s.t.Helper()
	for piece := range slices.Chunk(body, 1000) {
		s.send(frames.Data, piece)
	}
	if trailer == nil {
		sum := sha256.Sum256(body)
		trailer = object{"size": len(body), "sha256": hex.EncodeToString(sum[:])}
	}
	s.sendJSON(frames.End, trailer)
}

// listing returns the contents of a directory as text. It skips files that are deleted while it runs, such as those of an upload
// that is rolled back.
func listing(t *testing.T, directory string) string {
	t.Helper()
	var lines []string
	filepath.Walk(directory, func(path string, info os.FileInfo, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			t.Fatal(err)
		}
		if path == directory {
			return nil
		}
		line := info.Mode().String() + " " + strings.TrimPrefix(path, directory+"/")
		if target, err := os.Readlink(path); err == nil {
			line += " -> " + target
		}
		if info.Mode().IsRegular() {
			bytes, err := os.ReadFile(path)
			if errors.Is(err, fs.ErrNotExist) {
				return nil
			}
			if err != nil {
				t.Fatal(err)
			}
			line += " " + string(bytes)
		}
		lines = append(lines, line)
		return nil
	})
	return strings.Join(lines, "\n")
}

func TestAnUploadIsMergedIntoTheTarget(t *testing.T) {
	s, target := launch(t).connect(), shared(t)+"/app"
	os.Mkdir(target, 0o751)
	os.Mkdir(target+"/dir", 0o700)
	write(t, target+"/dir/old", "old", 0o644)
	write(t, target+"/file", "old", 0o644)
	write(t, target+"/becomes-dir", "old", 0o644)
	os.Symlink("/etc", target+"/link-becomes-dir")
	os.Symlink("/etc/hostname", target+"/link-becomes-file")
	answer := s.upload(target, "", archive(
		member{"./", "", 0o777},
		member{"./file", "new", 0o640},
		member{"dir/", "", 0o750},
		member{"dir/script.sh", "#!", 0o4755},
		member{"dir/.hidden", "h", 0o600},
		member{"dir/empty/", "", 0o500},
		member{"dir/empty/x", "x", 0o400},
		member{"implicit/parents/of", "o", 0o644},
		member{"becomes-dir/inside", "i", 0o644},
		member{"link-becomes-dir/", "", 0o755},
		member{"link-becomes-dir/hostname", "mine", 0o644},
		member{"link-becomes-file", "f", 0o644},
		member{"link -> ../somewhere/else", "", 0o777},
		member{"absolute -> /etc/passwd", "", 0o777},
		member{"hard => dir/script.sh", "", 0},
		member{"ünïcödé \n\t'\" -x", "u", 0o644},
		member{strings.Repeat("long/", 60) + "name", "l", 0o644},
		member{"file", "newer", 0o640},
	), nil)
	if answer["ok"] != true {
		t.Fatal(answer)
	}
	got := regexp.MustCompile(`(?m)^.* long.*\n`).ReplaceAllString(listing(t, target), "")
	wanted := `Lrwxrwxrwx absolute -> /etc/passwd
drwxr-xr-x becomes-dir
-rw-r--r-- becomes-dir/inside i
drwxr-x--- dir
-rw------- dir/.hidden h
dr-x------ dir/empty
-r-------- dir/empty/x x
-rw-r--r-- dir/old old
urwxr-xr-x dir/script.sh #!
-rw-r----- file newer
urwxr-xr-x hard #!
drwxr-xr-x implicit
drwxr-xr-x implicit/parents
-rw-r--r-- implicit/parents/of o
Lrwxrwxrwx link -> ../somewhere/else
drwxr-xr-x link-becomes-dir
-rw-r--r-- link-becomes-dir/hostname mine
-rw-r--r-- link-becomes-file f
` + "-rw-r--r-- ünïcödé \n\t'\" -x u"
	if got != wanted {
		t.Errorf("got\n%q\nwanted\n%q", got, wanted)
	}
	if info, _ := os.Stat(target); info.Mode().Perm() != 0o751 {
		t.Error("the target keeps its mode", info.Mode())
	}
	if content(t, target+"/"+strings.Repeat("long/", 60)+"name") != "l" {
		t.Error("long name")
	}
}

func TestAnUploadBelongsToItsUser(t *testing.T) {
	s, target := launch(t).connect(), shared(t)+"/new/target"
	s.upload(target, "nobody", archive(member{"d/", "", 0o700}, member{"d/f", "x", 0o4711}, member{"l -> f", "", 0}, member{"i/f", "", 0o644}), nil)
	for name, mode := range map[string]os.FileMode{"d": os.ModeDir | 0o700, "d/f": os.ModeSetuid | 0o711, "l": os.ModeSymlink | 0o777, "i": os.ModeDir | 0o755, "i/f": 0o644} {
		info, err := os.Lstat(target + "/" + name)
		if err != nil || info.Mode() != mode || owner(t, target+"/"+name) != 65534 {
			t.Error(name, info, err)
		}
	}
	if owner(t, target) != 0 {
		t.Error("the target itself is PID 1's")
	}
}

func TestAnUploadIntoTheRuntimeDirectory(t *testing.T) {
	s := launch(t).connect()
	if answer := s.upload("$RUNTIME/agent", "", archive(member{"f", "x", 0o644}), nil); answer["ok"] != true {
		t.Fatal(answer)
	}
	if result := s.shell("cat /run/multistep/agent/f; stat -c %a /run/multistep", nil); result["tail"] != "x755\n" {
		t.Error(result)
	}
}

func TestAnUploadThatIsWrongLeavesNothing(t *testing.T) {
	s, target := launch(t).connect(), shared(t)
	os.Mkdir(target+"/dir", 0o755)
	write(t, target+"/file", "old", 0o644)
	before := listing(t, target)
	good := archive(member{"file", "new", 0o644})
	huge := &tar.Header{Name: "fifo", Typeflag: tar.TypeFifo}
	var fifo bytes.Buffer
	writer := tar.NewWriter(&fifo)
	check(writer.WriteHeader(huge))
	check(writer.Close())
	for name, each := range map[string]struct {
		body    []byte
		trailer object
	}{
		"bad digest":        {good, object{"size": len(good), "sha256": strings.Repeat("0", 64)}},
		"bad size":          {good, object{"size": len(good) + 1, "sha256": ""}},
		"given up":          {good, object{"size": 0, "sha256": "", "error": "disk on fire"}},
		"cut content":       {archive(member{"file", strings.Repeat("x", 5000), 0o644})[:2000], nil},
		"no tar":            {[]byte(strings.Repeat("nonsense", 200)), nil},
		"dotdot":            {archive(member{"file", "new", 0o644}, member{"a/../../x", "", 0o644}), nil},
		"dotdot dir":        {archive(member{"../x/", "", 0o755}), nil},
		"absolute":          {archive(member{"/tmp/x", "", 0o644}), nil},
		"through a link":    {archive(member{"a -> /tmp", "", 0}, member{"a/x", "", 0o644}), nil},
		"through a link in": {archive(member{"a -> dir", "", 0}, member{"a/x", "", 0o644}), nil},
		"through a file":    {archive(member{"a", "", 0o644}, member{"a/x", "", 0o644}), nil},
		"file over dir":     {archive(member{"dir", "", 0o644}), nil},
		"link over dir":     {archive(member{"dir -> x", "", 0o644}), nil},
		"both in stream":    {archive(member{"a/b", "", 0o644}, member{"a", "", 0o644}), nil},
		"hard link out":     {archive(member{"a => ../../etc/passwd", "", 0}), nil},
		"hard link abs":     {archive(member{"a => /etc/passwd", "", 0}), nil},
		"hard link to disk": {archive(member{"a => file", "", 0}), nil},
		"hard link to link": {archive(member{"l -> /etc/passwd", "", 0}, member{"a => l", "", 0}), nil},
		"fifo":              {fifo.Bytes(), nil},
	} {
		answer := s.upload(target, "", each.body, each.trailer)
		code := "Upload"
		if each.trailer != nil {
			code = "Body" // the trailer does not match the body: the caller can send the body again
		}
		if answer["ok"] != false || answer["error"].(object)["code"] != code {
			t.Errorf("%s: %v", name, answer)
		}
		if after := listing(t, target); after != before {
			t.Errorf("%s:\n%s", name, after)
		}
	}
	for _, record := range s.ask(object{"op": "hello", "protocols": []int{1}})["records"].([]any) {
		t.Error(record)
	}
}

func TestAFullDiskIsDistinguished(t *testing.T) {
	s := launch(t).connect()
	s.shell("mkdir /run/small && mount -t tmpfs -o size=64k,nr_inodes=20 small /run/small", nil)
	answer := s.upload("/run/small", "", archive(member{"a/file", strings.Repeat("x", 200_000), 0o644}), nil)
	if answer["ok"] != false || answer["error"].(object)["code"] != "DiskFull" {
		t.Error(answer)
	}
	if left := s.shell("ls -A /run/small", nil); left["tail"] != "" {
		t.Error(left)
	}
	s.shell("for i in $(seq 30); do : > /run/small/$i; done", nil)
	for id, directory := range map[string]string{"r1": "/run/small/new", "r2": "/run/small/new/er"} {
		reset := s.record(object{"op": "reset", "id": id, "directories": []object{{"path": directory, "mode": 511, "user": ""}}})
		if errorCode(reset["result"].(object)) != "DiskFull" {
			t.Error(reset)
		}
	}
	if answer := s.upload("/run/small", "", archive(member{"file", "", 0o644}), nil); answer["error"].(object)["code"] != "DiskFull" {
		t.Error(answer)
	}
}

func TestAnUploadIsDoneOnce(t *testing.T) {
	c, target := launch(t), shared(t)
	s := c.connect()
	body := archive(member{"file", "first", 0o644})
	bad := s.upload(target, "", body, object{"size": 1, "sha256": ""})
	if bad["ok"] != false {
		t.Fatal(bad)
	}
	lastID-- // use the same id again, which a failed upload permits
	if good := s.upload(target, "", body, nil); good["ok"] != true || good["record"].(object)["acknowledged"] != true {
		t.Fatal(good)
	}
	write(t, target+"/file", "changed", 0o644)
	lastID--
	if again := c.connect().upload(target, "", body, nil); again["record"] == nil || content(t, target+"/file") != "changed" {
		t.Error(again)
	}
	if ready := c.readiness(); ready != 200 {
		t.Error(ready)
	}
}

func TestTwoUploadsOfOneIDMakeOne(t *testing.T) {
	c, target := launch(t), shared(t)
	slow, fast := c.connect(), c.connect()
	request := object{"op": "upload", "id": "u", "target": target}
	body := archive(member{"file", "x", 0o644})
	sum := sha256.Sum256(body)
	trailer := object{"size": len(body), "sha256": hex.EncodeToString(sum[:])}
	for _, s := range []*session{slow, fast} {
		if s.ask(request)["proceed"] != true {
			t.Fatal("no")
		}
	}
	for _, s := range []*session{fast, slow} {
		s.send(frames.Data, body)
		s.sendJSON(frames.End, trailer)
		if answer := s.receive(); answer["ok"] != true {
			t.Error(answer)
		}
		write(t, target+"/file", "changed", 0o644)
	}
	if listing(t, target) != "-rw-r--r-- file changed" {
		t.Error(listing(t, target))
	}
}

func TestASessionThatDiesInAnUploadLeavesNothing(t *testing.T) {
	c, target := launch(t), shared(t)
	s := c.connect()
	s.ask(object{"op": "upload", "id": "u", "target": target})
	s.send(frames.Data, archive(member{"file", strings.Repeat("x", 5000), 0o644})[:3000])
	eventually(t, "it is on its way", func() bool { return strings.Contains(listing(t, target), "xxx") })
	s.stdin.Close()
	eventually(t, "it is gone", func() bool { return listing(t, target) == "" })
}

func TestAnUploadCrossesMounts(t *testing.T) {
	s, target := launch(t).connect(), shared(t)
	os.Mkdir(target+"/mounted", 0o755)
	s.shell("mount -t tmpfs none "+target+"/mounted; cd "+target+"/mounted; echo old >f", nil)
	answer := s.upload(target, "nobody", archive(member{"mounted/f", "new", 0o4755}, member{"mounted/l -> f", "", 0}), nil)
	if answer["ok"] != true {
		t.Fatal(answer)
	}
	result := s.shell("cd "+target+"/mounted; ls -A | tr '\\n' ' '; cat f; stat -c ' %a %U' f; readlink l", nil)
	if result["tail"] != "f l new 4755 nobody\nf\n" {
		t.Error(result)
	}
}

func TestADiskFullInAnUploadIsAnError(t *testing.T) {
	s, target := launch(t).connect(), shared(t)
	s.shell("mount -t tmpfs -o size=100k none "+target, nil)
	answer := s.upload(target, "", archive(member{"f", strings.Repeat("x", 300000), 0o644}), nil)
	if answer["ok"] != false || !strings.Contains(answer["error"].(object)["message"].(string), "no space") {
		t.Error(answer)
	}
	if result := s.shell("ls -A "+target, nil); result["tail"] != "" {
		t.Error(result)
	}
}

// download sends a download request and returns the sources' types, the members and the trailer.
func (s *session) download(sources ...object) (types []string, members []string, trailer frames.Trailer) {
	s.t.Helper()
	answer := s.ask(object{"op": "download", "sources": sources})
	for _, source := range answer["sources"].([]any) {
		types = append(types, source.(object)["type"].(string))
	}
	body, pipe := frames.NewBody(s.frames), &bytes.Buffer{}
	if _, err := io.Copy(pipe, body); err != nil {
		s.t.Fatal(err)
	}
	if err := body.Verify(); err != nil {
		s.t.Fatal(err)
	}
	reader := tar.NewReader(pipe)
	for {
		header, err := reader.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			s.t.Fatal(err)
		}
		text, _ := io.ReadAll(reader)
		line := fmt.Sprintf("%s %o", header.Name, header.Mode)
		if header.Linkname != "" {
			line += " -> " + header.Linkname
		} else if header.Typeflag == tar.TypeReg {
			line += " " + string(text)
		}
		members = append(members, line)
	}
	slices.Sort(members)
	return types, members, body.Trailer()
}

func TestADownload(t *testing.T) {
	s, directory := launch(t).connect(), shared(t)
	result := s.shell(`cd `+directory+`; mkdir -p d/sub/deep d/empty e; echo -n a >d/a.txt; echo -n b >d/sub/b.log; echo -n c >d/sub/deep/c.txt
		chmod 4750 d/a.txt; chmod 700 d/empty; ln -s /etc/passwd d/link; ln -s nowhere d/dangling; mkfifo d/fifo; ln -s d/a.txt to-file; ln -s d to-dir
		python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind("d/socket")'; echo -n n >$'e/\xff\n\xc3\xa4'; mkfifo fifo; ln -s loop loop; : >d/nul`, nil)
	if result["exitCode"] != 0.0 {
		t.Fatal(result)
	}
	var sources []object
	for _, name := range []string{"d", "d/a.txt", "missing", "to-file", "to-dir/sub", "fifo", "loop", "d/a.txt/x", "e"} {
		sources = append(sources, object{"path": directory + "/" + name, "exclude": []string{}})
	}
	types, members, trailer := s.download(sources...)
	if got := strings.Join(types, " "); got != "directory file missing file directory other missing missing directory" {
		t.Error(got)
	}
	wanted := []string{
		"0/ 755", "0/a.txt 4750 a", "0/dangling 777 -> nowhere", "0/empty/ 700", "0/link 777 -> /etc/passwd", "0/nul 644 ",
		"0/sub/ 755", "0/sub/b.log 644 b", "0/sub/deep/ 755", "0/sub/deep/c.txt 644 c",
		"1 4750 a", "3 4750 a", "4/ 755", "4/b.log 644 b", "4/deep/ 755", "4/deep/c.txt 644 c", "8/ 755", "8/\xff\nä 644 n",
	}
	if !slices.Equal(members, wanted) || trailer.Changed != nil || trailer.Unreadable != nil {
		t.Errorf("%q\n%q\n%v", members, wanted, trailer)
	}
}

func TestADownloadFollowsLinksOfAUserToWhatThatUserMayRead(t *testing.T) {
	s, directory := launch(t).connect(), shared(t)
	prepared := s.shell(`cd `+directory+`; chmod 755 .; mkdir -m 700 shut; mkdir hidden hers; echo -n answer >shut/answer; echo -n key >key; chmod 600 key
		cp key hidden; echo -n open >open; ln -s ../key hers/of-root; chown 1234:1234 hers`, nil)
	made := s.shell(`cd `+directory+`/hers; ln -s ../key key; ln -s ../shut/answer answer; ln -s ../hidden hidden; ln -s ../open open; echo -n mine >mine
		chmod 600 mine; ln -s mine file; mkdir -m 700 own; echo -n x >own/x; ln -s own dir; ln -s .. up`, object{"user": "1234:1234"})
	if prepared["exitCode"] != 0.0 || made["exitCode"] != 0.0 {
		t.Fatal(prepared, made)
	}
	var sources []object
	for _, name := range []string{"key", "answer", "hidden", "open", "file", "dir", "up/key", "up/open", "of-root"} {
		sources = append(sources, object{"path": directory + "/hers/" + name, "exclude": []string{}})
	}
	types, members, trailer := s.download(sources...)
	if got := strings.Join(types, " "); got != "other other other file file directory other file file" {
		t.Error(got)
	}
	if !slices.Equal(members, []string{"3 644 open", "4 600 mine", "5/ 700", "5/x 644 x", "7 644 open", "8 600 key"}) {
		t.Errorf("%q", members)
	}
	if !slices.Equal(trailer.Unreadable, []string{"0", "1", "2", "6"}) {
		t.Error(trailer)
	}
}

func TestADownloadLeavesOutWhatIsExcluded(t *testing.T) {
	s, directory := launch(t).connect(), shared(t)
	s.shell(`cd `+directory+`; mkdir -p a/cache/x keep/node_modules; touch a.log a/b.log a/cache/x/y keep/node_modules/m keep/k 'br[ck'`, nil)
	for _, each := range []struct {
		exclude []string
		wanted  string
	}{
		{[]string{"*.log", "cache", "node_modules/*"}, "0/ 0/a/ 0/br[ck 0/keep/ 0/keep/k 0/keep/node_modules/"},
		{[]string{"a/*"}, "0/ 0/a.log 0/a/ 0/br[ck 0/keep/ 0/keep/k 0/keep/node_modules/ 0/keep/node_modules/m"},
		{[]string{"[ab]*"}, "0/ 0/keep/ 0/keep/k 0/keep/node_modules/ 0/keep/node_modules/m"},
		{[]string{"*"}, "0/"},
	} {
		_, members, _ := s.download(object{"path": directory, "exclude": each.exclude})
		var names []string
		for _, member := range members {
			names = append(names, strings.Fields(member)[0])
		}
		if got := strings.Join(names, " "); got != each.wanted {
			t.Errorf("%v:\n%s\n%s", each.exclude, got, each.wanted)
		}
	}
	if _, members, _ := s.download(object{"path": directory + "/a.log", "exclude": []string{"*.log"}}); len(members) != 1 {
		t.Error("excludes are for directories only", members)
	}
}

func TestADownloadOfWhatCannotBeRead(t *testing.T) {
	directory := shared(t)
	write(t, directory+"/secret", "x", 0o600)
	write(t, directory+"/open", "x", 0o644)
	os.Mkdir(directory+"/closed", 0o700)
	c := launch(t, func(with *setup) { with.UID = 12345 })
	s := c.connectBy(execCommand("nsenter", "-t", itoa(c.pid), "-p", "-n", "-m", "-S", "12345", "-G", "12345", "--", program, "call"))
	s.ask(object{"op": "hello", "protocols": []int{1}})
	types, members, trailer := s.download(object{"path": directory}, object{"path": directory + "/secret"}, object{"path": directory + "/closed"}, object{"path": directory + "/closed/x"})
	slices.Sort(trailer.Unreadable)
	if strings.Join(types, " ") != "directory file directory other" || !slices.Equal(trailer.Unreadable, []string{"0/closed", "0/secret", "1", "2", "3"}) ||
		!slices.Contains(members, "0/open 644 x") {
		t.Error(types, members, trailer)
	}
}

func TestADownloadOfFilesThatChange(t *testing.T) {
	s, directory := launch(t).connect(), shared(t)
	file := directory + "/file"
	s.shell("(setsid bash -c 'while :; do head -c 3000000 /dev/urandom >"+file+"; : >"+file+"; done' &)", nil)
	for range 20 {
		_, members, trailer := s.download(object{"path": directory})
		if len(members) > 2 || (len(trailer.Changed) > 0 && trailer.Changed[0] != "0/file") {
			t.Error(len(members), trailer)
		}
	}
	special := []object{{"path": "/proc/self/status"}, {"path": "/proc/1/task"}}
	types, _, _ := s.download(special...) // files of size 0 and changing directories are no error
	if strings.Join(types, " ") != "file directory" {
		t.Error(types)
	}
}

func TestAShrunkFileIsPaddedAndNamed(t *testing.T) {
	s, directory := launch(t).connect(), shared(t)
	sparse := directory + "/sparse"
	s.shell("truncate -s 30M "+sparse, nil)
	s.sendJSON(frames.JSON, object{"op": "download", "sources": []object{{"path": sparse}}})
	s.receive()
	body := frames.NewBody(s.frames)
	head, err := io.CopyN(io.Discard, body, 512) // the header with the file's size, which is more than the pipes hold
	check(err)
	check(os.Truncate(sparse, 1000))
	size, err := io.Copy(io.Discard, body)
	size += head
	if err != nil || body.Verify() != nil || size < 30<<20 || !slices.Equal(body.Trailer().Changed, []string{"0"}) {
		t.Error(size, err, body.Trailer())
	}
}

func TestAVeryDeepDirectory(t *testing.T) {
	s, directory := launch(t).connect(), shared(t)
	dig := `import os
os.chdir("` + directory + `"); os.mkdir("top"); os.chdir("top")
for _ in range(3000): os.mkdir("d"); os.chdir("d")
open("bottom", "w")`
	if result := s.phase([]string{"/usr/bin/python3", "-c", dig}, object{"user": "nobody"}); result["exitCode"] != 0.0 {
		t.Fatal(result)
	}
	_, members, trailer := s.download(object{"path": directory})
	if len(members) < 100 || len(trailer.Unreadable) != 1 {
		t.Error(len(members), trailer)
	}
	reset := s.record(object{"op": "reset", "id": "r", "directories": []object{{"path": directory, "mode": 511, "user": ""}}})
	if errorCode(reset["result"].(object)) != "" || listing(t, directory) != "" {
		t.Error(reset)
	}
}

func TestAReset(t *testing.T) {
	s, directory := launch(t).connect(), shared(t)
	victim := t.TempDir()
	write(t, victim+"/precious", "x", 0o644)
	s.shell(`cd `+directory+`; mkdir -p full/a/b .hidden full/.dot; touch full/x full/.y full/a/b/z; ln -s `+victim+` link; ln -s `+victim+` full/link
		touch file; mkfifo fifo; mkdir kept; touch kept/k; ln -s `+victim+` kept-link`, nil)
	var directories []object
	for _, name := range []string{"full", "link", "file", "fifo", "new", "new/and/deep"} {
		directories = append(directories, object{"path": directory + "/" + name, "mode": 0o777, "user": ""})
	}
	directories = append(directories,
		object{"path": directory + "/kept", "mode": 0o750, "user": "nobody", "keep": true},
		object{"path": directory + "/kept-link", "mode": 0o700, "user": "", "keep": true},
		object{"path": directory + "/sticky", "mode": 0o1777, "user": "nobody:nogroup"})
	request := object{"op": "reset", "id": "r", "directories": directories}
	if record := s.record(request); record["result"].(object)["error"] != nil {
		t.Fatal(record)
	}
	wanted := `drwxr-xr-x .hidden
drwxrwxrwx fifo
drwxrwxrwx file
drwxrwxrwx full
drwxr-x--- kept
-rw-r--r-- kept/k 
drwx------ kept-link
drwxrwxrwx link
drwxrwxrwx new
drwxr-xr-x new/and
drwxrwxrwx new/and/deep
dtrwxrwxrwx sticky`
	if got := listing(t, directory); got != wanted {
		t.Errorf("got\n%s\nwanted\n%s", got, wanted)
	}
	if content(t, victim+"/precious") != "x" || owner(t, directory+"/kept") != 65534 || owner(t, directory+"/sticky") != 65534 {
		t.Error("owners, or a link was followed")
	}
	write(t, directory+"/full/again", "x", 0o644)
	s.record(request)
	if content(t, directory+"/full/again") != "x" {
		t.Error("done twice")
	}
	failed := s.record(object{"op": "reset", "id": "r2", "directories": []object{{"path": "/proc/x", "mode": 511}}})
	if errorCode(failed["result"].(object)) == "" {
		t.Error(failed)
	}
}

func TestOnlyItsUserCanWriteToADirectoryThatAResetProtects(t *testing.T) {
	for _, image := range []string{ // as Dockerfiles prepare /logs for an agent that is not root
		"mkdir -p logs/verifier; chown -R nobody logs",
		"mkdir -p logs/verifier; chmod -R 777 logs",
		"mkdir logs; chown nobody logs",
		"mkdir -p logs/verifier; chown nobody logs/verifier",
		"mkdir logs; chmod 1777 logs",
		"true",
	} {
		for _, keep := range []bool{false, true} {
			s, directory := launch(t).connect(), shared(t)
			s.shell("cd "+directory+"; chmod 755 .; "+image, nil)
			s.record(object{"op": "reset", "id": "r", "directories": []object{{"path": directory + "/logs/verifier", "mode": 0o755, "keep": keep}}})
			attack := "cd " + directory + "/logs; echo 1 > verifier/reward.txt; chmod 777 verifier; mv verifier old; ls -ld verifier"
			if result := s.shell(attack, object{"user": "nobody"}); result["exitCode"] != 0.0 {
				t.Error(image, result)
			}
			if found := listing(t, directory+"/logs"); found != "drwxr-xr-x verifier" || owner(t, directory+"/logs/verifier") != 0 {
				t.Errorf("%q, keep %v:\n%s", image, keep, found)
			}
		}
	}
}

func TestAResetWithoutRootInADirectoryThatAllUsersMayWrite(t *testing.T) {
	directory := shared(t) // as an emptyDir, which root owns
	check(os.Chmod(directory, 0o777))
	s := launch(t, func(with *setup) { with.UID = 65534 }).connectAs("65534", program)
	record := s.record(object{"op": "reset", "id": "r", "directories": []object{{"path": directory + "/d", "mode": 0o755}}})
	if found := listing(t, directory); found != "drwxr-xr-x d" || owner(t, directory+"/d") != 65534 {
		t.Error(record, found)
	}
}

func TestAResetOfAVolumeInAReadOnlyDirectoryOfAnotherUser(t *testing.T) {
	s, directory := launch(t).connect(), shared(t)
	s.shell("cd "+directory+"; mkdir -p logs/verifier; chown nobody logs; mount --bind logs logs; mount -o remount,bind,ro logs; "+
		"mount -t tmpfs -o mode=777 none logs/verifier", nil)
	record := s.record(object{"op": "reset", "id": "r", "directories": []object{{"path": directory + "/logs/verifier", "mode": 0o755}}})
	if result := s.shell("stat -c %a "+directory+"/logs/verifier", nil); result["tail"] != "755\n" {
		t.Error(record, result)
	}
}

func TestAResetAgainstAUserWhoKeepsWriting(t *testing.T) {
	s, directory := launch(t).connect(), shared(t)
	s.record(object{"op": "reset", "id": "r", "directories": []object{{"path": directory + "/d", "mode": 0o777}}})
	s.shell("cd "+directory+"/d; (setsid bash -c 'while :; do mkdir -p a/b; echo x >a/b/c; ln -sfn / a/l; done' &)", object{"user": "nobody"})
	for i := range 20 {
		s.record(object{"op": "reset", "id": fmt.Sprint("r/", i), "directories": []object{{"path": directory + "/d", "mode": 0o777}}})
	}
	if _, err := os.Stat("/etc/passwd"); err != nil {
		t.Fatal("a link was followed")
	}
}

// TestMemoryAndSpeed logs its measurements. Its limits are far above typical values, so that a slow machine passes.
func TestMemoryAndSpeed(t *testing.T) {
	c, target := launch(t), shared(t)
	s := c.connect()
	s.shell("true", nil)
	zeros, size := make([]byte, 256<<10), int64(512<<20)
	measure := func(what string, bytes int64, do func()) {
		started := time.Now()
		do()
		t.Logf("%s: %.0f MB/s, %.1f s, PID 1 at most %d kB", what, float64(bytes)/1e6/time.Since(started).Seconds(), time.Since(started).Seconds(), c.memory("VmHWM"))
	}
	measure("upload of one file", size, func() {
		s.stream(target, func(w *tar.Writer) {
			check(w.WriteHeader(&tar.Header{Name: "large", Size: size, Mode: 0o644}))
			for range size / int64(len(zeros)) {
				w.Write(zeros)
			}
		})
	})
	measure("download of one file", size, func() {
		s.sendJSON(frames.JSON, object{"op": "download", "sources": []object{{"path": target + "/large"}}})
		s.receive()
		body := frames.NewBody(s.frames)
		if n, err := io.Copy(io.Discard, body); n < size || err != nil || body.Verify() != nil {
			t.Error(n, err)
		}
	})
	os.Remove(target + "/large")
	const files = 50000
	measure("upload of 50,000 files", files*1000, func() {
		s.stream(target, func(w *tar.Writer) {
			for i := range files {
				check(w.WriteHeader(&tar.Header{Name: fmt.Sprintf("d%d/f%d", i%500, i), Size: 1000, Mode: 0o644}))
				w.Write(zeros[:1000])
			}
		})
	})
	measure("download of 50,000 files", files*1000, func() {
		s.sendJSON(frames.JSON, object{"op": "download", "sources": []object{{"path": target}}})
		s.receive()
		body := frames.NewBody(s.frames)
		if n, err := io.Copy(io.Discard, body); n < files*1000 || err != nil || body.Verify() != nil {
			t.Error(n, err)
		}
	})
	if most := c.memory("VmHWM"); most > 30_000 && len(buildFlags) == 0 {
		t.Error("too much memory", most)
	}
	t.Log("at rest", c.memory("VmRSS"))
}

func (c *container) memory(field string) (kilobytes int) {
	status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.pid))
	_, rest, _ := strings.Cut(string(status), field+":")
	fmt.Sscan(rest, &kilobytes)
	return kilobytes
}

// stream uploads a tar stream without buffering all of it in memory.
func (s *session) stream(target string, fill func(*tar.Writer)) {
	s.t.Helper()
	lastID++
	if s.ask(object{"op": "upload", "id": fmt.Sprintf("stream/%d", lastID), "target": target})["proceed"] != true {
		s.t.Fatal("no")
	}
	body := frames.NewBodyWriter(s.stdin)
	writer := tar.NewWriter(body)
	fill(writer)
	check(writer.Close())
	check(body.Finish(frames.Trailer{}))
	if answer := s.receive(); answer["ok"] != true {
		text, _ := json.Marshal(answer)
		s.t.Fatalf("%s", text)
	}
}
